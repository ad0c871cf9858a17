// One row of an RMS norm, CPU SIMD, shared by norm.rms and norm.rms.residual. Include only from files that Highway
// compiles per target, after kernels/simd.h.
#if defined(LZ_KERNELS_NORM_RMS_ROW_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LZ_KERNELS_NORM_RMS_ROW_H_
#undef LZ_KERNELS_NORM_RMS_ROW_H_
#else
#define LZ_KERNELS_NORM_RMS_ROW_H_
#endif

#include <cmath>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/norm/range.h"
#include "kernels/rows.h"
#include "kernels/simd.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE {

// Sum of squares of x[0, n): FP32 in 4 x lanes parts.
template <class T>
HWY_INLINE float SumOfSquares(const T* HWY_RESTRICT x, int64_t n) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  auto s0 = hn::Zero(d), s1 = hn::Zero(d), s2 = hn::Zero(d), s3 = hn::Zero(d);
  int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    const auto v = LoadTwo(d, x + i), u = LoadTwo(d, x + i + 2 * lanes);
    s0 = hn::MulAdd(v.a, v.a, s0);
    s1 = hn::MulAdd(v.b, v.b, s1);
    s2 = hn::MulAdd(u.a, u.a, s2);
    s3 = hn::MulAdd(u.b, u.b, s3);
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
  const auto scaled = [=](auto d, auto v, auto gain) HWY_ATTR {
    return hn::Mul(hn::Mul(v, hn::Set(d, scale)), hn::Add(gain, hn::Set(d, offset)));
  };
  if (w) return MapRow(out, n, scaled, x, w);
  MapRow(
      out, n, [&](auto d, auto v) HWY_ATTR { return scaled(d, v, hn::Set(d, 1.0f)); }, x);
}

// The norm of one row in FP64, for rows whose squares exceed the range of FP32. `out` may be `x`.
template <class T>
HWY_NOINLINE void RmsRowInDouble(const T* x, const T* w, T* out, int64_t hidden, double eps, double offset) {
  double squares = 0;
  for (int64_t i = 0; i < hidden; ++i) squares += double(ToFloat(x[i])) * double(ToFloat(x[i]));
  const double scale = 1.0 / std::sqrt(squares / double(hidden) + eps);
  for (int64_t i = 0; i < hidden; ++i) {
    FromFloat(float(ToFloat(x[i]) * scale * ((w ? double(ToFloat(w[i])) : 1.0) + offset)), out + i);
  }
}

// The norm of one row whose sum of squares is known. `out` may be `x`.
template <class T>
HWY_INLINE void NormRow(const T* x, const T* w, T* out, int64_t hidden, float squares, float eps, float offset) {
  const float mean = squares / float(hidden) + eps;
  if (!(mean > kSmallestSquare && mean < kLargestSquare)) [[unlikely]] {
    return RmsRowInDouble(x, w, out, hidden, eps, offset);
  }
  ScaleRow(x, w, out, hidden, 1.0f / std::sqrt(mean), offset);
}

// One row of the norm: `out` may be `x`.
template <class T>
HWY_INLINE void RmsRow(const T* x, const T* w, T* out, int64_t hidden, float eps, float offset) {
  NormRow(x, w, out, hidden, SumOfSquares(x, hidden), eps, offset);
}

}  // namespace lz::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
