// Products of queries and keys to logits and weights, in the registers of a warp: of 16 rows lane l has l / 4 and l / 4
// + 8, of 8 keys those from 2 (l % 4) on.
#pragma once

#include "kernels/attention/rows_cuda.h"

#ifdef __CUDACC__
namespace lz::attention {

// What becomes of products on the way to logits: nothing but a scale above 0; a scale; a soft-cap and slopes too, with
// a scale above 0 and a soft-cap of kLargeCap at most; all of them and a mask. Code for less is faster.
enum class Changes { kNone, kScale, kCapAndSlopes, kAny };
// Logits are factor * z + shift, where Weigh applies the factor: an operation less for each of them.
struct LogitUnit {
  float factor = 1, shift = 0;
};
template <Changes kChanges>
__device__ LogitUnit UnitOf(const CudaProblem& p, float scale) {
  if constexpr (kChanges != Changes::kNone && kChanges != Changes::kCapAndSlopes) return {};
  if (kChanges == Changes::kCapAndSlopes && p.softcap > 0) return {2 * p.softcap, p.softcap};
  return {scale, 0};
}

// Above this soft-cap the expression for all logits is off by more than 1e-5, since it is off by up to 1e-7 of the cap.
inline constexpr float kLargeCap = 100;
__device__ inline float CappedBy(float cap, float z) {
  const float y = z / cap, y2 = y * y;
  if (fabsf(y) < 0.25f) {  // the series of tanh
    return z * (1 + y2 * (-1.0f / 3 + y2 * (2.0f / 15 + y2 * (-17.0f / 315 + y2 * (62.0f / 2835)))));
  }
  return cap - 2 * cap * FastReciprocal(1 + FastExp2(y * (2 * kLog2E)));
}

// Products of a lane's rows and keys from j0 on to logits in their unit: scaled, capped, biased, hidden. `full`: every
// key exists, else exists(i) says whether key j0 + i does.
template <int kKeys, Changes kChanges = Changes::kAny, class Exists>
__device__ void ToLogits(float (&z)[kKeys / 8][4], const CudaProblem& p, const CudaRow (&rows)[2], float scale, int b,
                         int j0, bool full, Exists&& exists) {
  constexpr bool kInUnits = kChanges == Changes::kCapAndSlopes;
  const auto each = [&](auto&& change) {
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) z[n][i] = change(rows[i / 2], z[n][i], n * 8 + int(threadIdx.x) % 4 * 2 + i % 2);
    }
  };
  if constexpr (kChanges == Changes::kScale) each([&](const CudaRow&, float x, int) { return x * scale; });
  if constexpr (kChanges == Changes::kCapAndSlopes || kChanges == Changes::kAny) {
    if (!kInUnits && p.softcap > kLargeCap) {
      each([&](const CudaRow&, float x, int) { return CappedBy(p.softcap, x * scale); });
    } else if (p.softcap > 0) {
      const float cap = p.softcap, twice = scale * 2 / cap * kLog2E;
      each([&](const CudaRow&, float x, int) {
        const float below = FastReciprocal(1 + FastExp2(x * twice));  // cap * tanh(y) = cap - 2 * cap / (1 + e^2y)
        return kInUnits ? -below : cap - 2 * cap * below;
      });
    } else if constexpr (!kInUnits) {
      each([&](const CudaRow&, float x, int) { return x * scale; });
    }
    if (p.slopes.data) {
      const float per_unit = kInUnits ? FastReciprocal(UnitOf<kChanges>(p, scale).factor) : 1.0f;
      float slope[2], first[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        slope[i] = rows[i].slope * per_unit;
        first[i] = float(rows[i].position - j0 - int(threadIdx.x) % 4 * 2);
      }
      const auto slope_by = [&](auto&& distance) {
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) z[n][i] -= slope[i / 2] * distance(i / 2, float(n * 8 + i % 2));
        }
      };
      if (rows[0].position >= j0 + kKeys - 1 && rows[1].position >= j0 + kKeys - 1) {  // no key is after its row
        first[0] -= rows[0].base, first[1] -= rows[1].base;
        slope_by([&](int i, float key) { return first[i] - key; });
      } else {
        slope_by([&](int i, float key) { return fabsf(first[i] - key) - rows[i].base; });
      }
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

// Logits to weights; `kept`: what the sums before them are multiplied by. kScaled: logits are `factor` times what is in
// z and in `top`, which the caller multiplies at the end. Not with a mask, which may have the largest numbers.
template <int kKeys, bool kScaled = false>
__device__ void Weigh(float (&z)[kKeys / 8][4], float (&top)[2], float (&sum)[2], float (&kept)[2], float factor = 1) {
  const float power = kScaled ? factor * kLog2E : kLog2E;
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
