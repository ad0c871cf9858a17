// How the lanes of attention of few rows on CUDA share keys and logits, and the elements of caches.
#pragma once

#include "kernels/attention/splits_cuda.h"

#ifdef __CUDACC__
namespace lz::attention {

inline constexpr int kDecodeThreads = 128;
inline constexpr int kLaneElements = 8;

struct E4M3 {
  uint8_t code;
};
struct E5M2 {
  uint8_t code;
};
__device__ inline float CacheFloat(float v) { return v; }
__device__ inline float CacheFloat(__half v) { return __half2float(v); }
__device__ inline float CacheFloat(__nv_bfloat16 v) { return __bfloat162float(v); }
__device__ inline float CacheFloat(int8_t v) { return float(v); }
__device__ inline float CacheFloat(E4M3 v) { return F8ToFloat(v.code, __NV_E4M3); }
__device__ inline float CacheFloat(E5M2 v) { return F8ToFloat(v.code, __NV_E5M2); }

// Sums v[i] over kLanes lanes. Lane l then has sum l / (kLanes / kN) in v[0] if kN <= kLanes, else the sums from
// l * kN / kLanes on.
template <int kN, int kLanes>
__device__ void SumAndScatter(float (&v)[kN], int lane) {
  int n = kN;
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) {
    if (n > 1) {
      n /= 2;
      const bool upper = (lane & step) != 0;
#pragma unroll
      for (int i = 0; i < kN / 2; ++i) {
        if (i >= n) break;
        const float kept = upper ? v[i + n] : v[i], sent = upper ? v[i] : v[i + n];
        v[i] = kept + __shfl_xor_sync(0xffffffffu, sent, step);
      }
    } else {
      v[0] += __shfl_xor_sync(0xffffffffu, v[0], step);
    }
  }
}

// What lanes, rows and keys of a step have to do with one another.
template <int kRows, int kLanes>
struct DecodeShape {
  static constexpr int kGroups = kDecodeThreads / kLanes;  // of lanes, in a block
  static constexpr int kKeys = kRows == 8 ? 2 : 4;         // of a group at once
  static constexpr int kLogits = kRows * kKeys;
  static constexpr int kLanesOfRow = kLanes / kRows;
  static constexpr int kLanesOfLogit = kLogits < kLanes ? kLanes / kLogits : 1;
  static constexpr int kLogitsOfLane = kLogits > kLanes ? kLogits / kLanes : 1;
  static constexpr int kStep = kGroups * kKeys;  // keys of a block at once
  static_assert(kLanesOfRow >= 1);
};

}  // namespace lz::attention
#endif  // __CUDACC__
