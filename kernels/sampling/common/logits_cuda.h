// A row of logits on CUDA, as floats, 16 bytes at a time: one block's loads must hide the latency of memory.
#pragma once

#include "kernels/sampling/common/block_cuda.h"

namespace lz::sampler {

#ifdef __CUDACC__
// Of a row with infinite logits these become 0 and all others -inf.
template <class T>
struct Logits {
  const T* x;
  bool infinite;

  __device__ float Value(T raw) const {
    const float v = ToFloat(raw) + 0.0f;  // one zero
    return !infinite ? v : v == kInfinity ? 0.0f : -kInfinity;
  }
  __device__ float operator()(int64_t i) const { return Value(x[i]); }

  // body(value) for a share of the elements [first, last): that of `lane` among `lanes`.
  template <class Body>
  __device__ void Each(int64_t first, int64_t last, int lane, int lanes, Body body) const {
    constexpr int kN = kLanes<T>, kBatch = 4;
    using V = Vector<T, kN>;
    const auto beyond = reinterpret_cast<uintptr_t>(x + first) % kVectorBytes;
    int64_t begin = first + (beyond == 0 ? 0 : int64_t((kVectorBytes - beyond) / sizeof(T)));
    if (begin > last) begin = last;
    const int64_t end = begin + (last - begin) / kN * kN, step = int64_t(lanes) * kN;
    for (int64_t i = first + lane; i < begin; i += lanes) body((*this)(i));
    for (int64_t i = end + lane; i < last; i += lanes) body((*this)(i));
    for (int64_t i = begin + lane * kN; i < end; i += kBatch * step) {
      V v[kBatch];
#pragma unroll
      for (int h = 0; h < kBatch; ++h) {
        if (i + h * step < end) v[h] = *reinterpret_cast<const V*>(x + i + h * step);
      }
#pragma unroll
      for (int h = 0; h < kBatch; ++h) {
        if (i + h * step >= end) break;
#pragma unroll
        for (int j = 0; j < kN; ++j) body(Value(v[h].v[j]));
      }
    }
  }
};
#endif  // __CUDACC__

}  // namespace lz::sampler
