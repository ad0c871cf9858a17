// Products of queries and keys to logits and weights, in the registers of a warp: of 16 rows lane l has l / 4 and l / 4
// + 8, of 8 keys those from 2 (l % 4) on.
#pragma once

#include "kernels/attention/rows_cuda.h"

#ifdef __CUDACC__
namespace lz::attention {

// What becomes of products on the way to logits: nothing but a scale above 0, which Weigh applies; a scale; a soft-cap
// and slopes too; also a mask. Code for less needs fewer registers.
enum class Changes { kNone, kScale, kCapAndSlopes, kAny };
// Products of a lane's rows and keys from j0 on to logits: scaled, capped, biased, hidden. `full`: every key exists,
// else exists(i) says whether key j0 + i does.
template <int kKeys, Changes kChanges = Changes::kAny, class Exists>
__device__ void ToLogits(float (&z)[kKeys / 8][4], const CudaProblem& p, const CudaRow (&rows)[2], float unit, int b,
                         int j0, bool full, Exists&& exists) {
  const auto each = [&](auto&& change) {
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) z[n][i] = change(rows[i / 2], z[n][i], n * 8 + int(threadIdx.x) % 4 * 2 + i % 2);
    }
  };
  if constexpr (kChanges == Changes::kScale) each([&](const CudaRow&, float x, int) { return x * unit; });
  if constexpr (kChanges == Changes::kCapAndSlopes || kChanges == Changes::kAny) {
    const int t = int(threadIdx.x) % 4 * 2;
    // Distances fall evenly from key to key where none is after its row.
    const bool are_even = p.slopes.data && rows[0].position >= j0 + kKeys - 1 && rows[1].position >= j0 + kKeys - 1;
    if (p.softcap > 0) {  // off by up to 1e-7 of the cap, where tanhf is as near as FP32 can be
      const float cap = p.softcap, twice = unit * 2 / cap * kLog2E;
      each([&](const CudaRow&, float x, int) { return cap - 2 * cap * FastReciprocal(1 + FastExp2(x * twice)); });
    } else {
      each([&](const CudaRow&, float x, int) { return x * unit; });
    }
    if (are_even) {
      float first[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) first[i] = float(rows[i].position - j0 - t) - rows[i].base;
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) z[n][i] -= rows[i / 2].slope * (first[i / 2] - float(n * 8 + i % 2));
      }
    } else if (p.slopes.data) {
      each([&](const CudaRow& r, float x, int i) { return Sloped(r, x, j0 + i); });
    }
  }
  if constexpr (kChanges == Changes::kAny) {
    if (p.mask) {
      each([&](const CudaRow& r, float x, int i) {
        return r.live && exists(i) ? Masked(p, r, x, b, j0 + i) : -HUGE_VALF;
      });
    }
  }
  const CudaRange &one = rows[0].keys, &other = rows[1].keys;
  if (full && one.begin <= j0 && other.begin <= j0 && j0 + kKeys <= one.end && j0 + kKeys <= other.end) return;
  each([&](const CudaRow& r, float x, int i) {
    return exists(i) && j0 + i >= r.keys.begin && j0 + i < r.keys.end ? x : -HUGE_VALF;
  });
}

// Logits to weights; `kept`: what the sums before them are multiplied by. kScaled: logits are `unit` times what is in z
// and in `top`, which the caller multiplies at the end. Of Changes::kNone alone: a mask may have the largest numbers.
template <int kKeys, bool kScaled = false>
__device__ void Weigh(float (&z)[kKeys / 8][4], float (&top)[2], float (&sum)[2], float (&kept)[2], float unit = 1) {
  const float power = kScaled ? unit * kLog2E : kLog2E;
  float most[2] = {-HUGE_VALF, -HUGE_VALF};
#pragma unroll
  for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) most[i / 2] = fmaxf(most[i / 2], z[n][i]);
  }
  float base[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    most[i] = fmaxf(most[i], __shfl_xor_sync(0xffffffffu, most[i], 1));
    most[i] = fmaxf(most[i], __shfl_xor_sync(0xffffffffu, most[i], 2));
    const float next = fmaxf(top[i], most[i]);
    base[i] = next == -HUGE_VALF ? 0.0f : next;
    kept[i] = FastExp2((top[i] - base[i]) * power);
    top[i] = next;
    sum[i] *= kept[i];
    if constexpr (kScaled) base[i] *= -power;
  }
#pragma unroll
  for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float x = kScaled ? __fmaf_rn(z[n][i], power, base[i / 2]) : (z[n][i] - base[i / 2]) * power;
      z[n][i] = FastExp2(x);
      sum[i / 2] += z[n][i];
    }
  }
}

}  // namespace lz::attention
#endif  // __CUDACC__
