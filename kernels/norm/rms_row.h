// One row of an RMS norm, CPU SIMD: shared by norm.rms and norm.rms.residual.
// Include inside HWY_NAMESPACE's file only, after kernels/simd.h.
#if defined(LZ_KERNELS_NORM_RMS_ROW_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LZ_KERNELS_NORM_RMS_ROW_H_
#undef LZ_KERNELS_NORM_RMS_ROW_H_
#else
#define LZ_KERNELS_NORM_RMS_ROW_H_
#endif

#include <cmath>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/simd.h"

HWY_BEFORE_NAMESPACE();
namespace lz {
namespace HWY_NAMESPACE {

// Sum of squares of x[0, n): FP32 in 4 x lanes parts.
template <class T>
HWY_INLINE float SumOfSquares(const T* HWY_RESTRICT x, int64_t n) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  auto s0 = hn::Zero(d), s1 = hn::Zero(d), s2 = hn::Zero(d), s3 = hn::Zero(d);
  int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    const auto a = LoadF32(d, x + i), b = LoadF32(d, x + i + lanes);
    const auto c = LoadF32(d, x + i + 2 * lanes), e = LoadF32(d, x + i + 3 * lanes);
    s0 = hn::MulAdd(a, a, s0);
    s1 = hn::MulAdd(b, b, s1);
    s2 = hn::MulAdd(c, c, s2);
    s3 = hn::MulAdd(e, e, s3);
  }
  for (; i + lanes <= n; i += lanes) {
    const auto a = LoadF32(d, x + i);
    s0 = hn::MulAdd(a, a, s0);
  }
  if (i < n) {
    const auto a = LoadF32N(d, x + i, size_t(n - i));
    s1 = hn::MulAdd(a, a, s1);
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3))));
}

// out[i] = x[i] * scale * (w[i] + offset); w == nullptr means 1. `out` may be `x`.
template <class T>
HWY_INLINE void ScaleRow(const T* x, const T* w, T* out, int64_t n, float scale, float offset) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  const auto vscale = hn::Set(d, scale), voffset = hn::Set(d, offset), one = hn::Set(d, 1.0f);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto gain = hn::Add(w ? LoadF32(d, w + i) : one, voffset);
    StoreF32(d, hn::Mul(hn::Mul(LoadF32(d, x + i), vscale), gain), out + i);
  }
  if (i < n) {
    const size_t rest = size_t(n - i);
    const auto gain = hn::Add(w ? LoadF32N(d, w + i, rest) : one, voffset);
    StoreF32N(d, hn::Mul(hn::Mul(LoadF32N(d, x + i, rest), vscale), gain), out + i, rest);
  }
}

// One row of the norm: `out` may be `x`.
template <class T>
HWY_INLINE void RmsRow(const T* x, const T* w, T* out, int64_t hidden, float eps, float offset) {
  const float scale = 1.0f / std::sqrt(SumOfSquares(x, hidden) / float(hidden) + eps);
  ScaleRow(x, w, out, hidden, scale, offset);
}

}  // namespace HWY_NAMESPACE
}  // namespace lz
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
