// One row of a layer norm, CPU SIMD, shared by norm.layer and norm.layer.residual. Include only from files that Highway
// compiles per target, after kernels/simd.h.
#if defined(LZ_KERNELS_NORM_LAYER_ROW_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LZ_KERNELS_NORM_LAYER_ROW_H_
#undef LZ_KERNELS_NORM_LAYER_ROW_H_
#else
#define LZ_KERNELS_NORM_LAYER_ROW_H_
#endif

#include <cmath>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/norm/range.h"
#include "kernels/rows.h"
#include "kernels/simd.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE {

template <class T>
HWY_INLINE float SumOf(const T* x, int64_t n) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  auto s0 = hn::Zero(d), s1 = hn::Zero(d), s2 = hn::Zero(d), s3 = hn::Zero(d);
  int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    const auto v = LoadTwo(d, x + i), u = LoadTwo(d, x + i + 2 * lanes);
    s0 = hn::Add(s0, v.a);
    s1 = hn::Add(s1, v.b);
    s2 = hn::Add(s2, u.a);
    s3 = hn::Add(s3, u.b);
  }
  for (; i + lanes <= n; i += lanes) s0 = hn::Add(s0, LoadF32(d, x + i));
  if (i < n) s1 = hn::Add(s1, LoadF32N(d, x + i, size_t(n - i)));
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3))));
}

struct Deviations {
  float sum, squares;
};
// Sums of x - mean and its square: the first is the rounding error of the mean, by which both mean and variance
// are corrected.
template <class T>
HWY_INLINE Deviations SumDeviations(const T* x, int64_t n, float mean) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  const auto m = hn::Set(d, mean);
  auto s0 = hn::Zero(d), s1 = hn::Zero(d), q0 = hn::Zero(d), q1 = hn::Zero(d);
  int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    const auto v = LoadTwo(d, x + i);
    const auto a = hn::Sub(v.a, m), b = hn::Sub(v.b, m);
    s0 = hn::Add(s0, a);
    s1 = hn::Add(s1, b);
    q0 = hn::MulAdd(a, a, q0);
    q1 = hn::MulAdd(b, b, q1);
  }
  for (; i < n; i += lanes) {
    const size_t rest = size_t(HWY_MIN(n - i, lanes));
    const auto a = hn::IfThenElseZero(hn::FirstN(d, rest), hn::Sub(LoadF32N(d, x + i, rest), m));
    s0 = hn::Add(s0, a);
    q0 = hn::MulAdd(a, a, q0);
  }
  return {hn::GetLane(hn::SumOfLanes(d, hn::Add(s0, s1))), hn::GetLane(hn::SumOfLanes(d, hn::Add(q0, q1)))};
}

// The norm of one row in FP64, for rows whose squares exceed the range of FP32. Arguments as in LayerRow.
template <class T>
HWY_NOINLINE void LayerRowInDouble(const T* x, const T* w, const T* bias, T* out, int64_t n, double eps,
                                   double offset) {
  double sum = 0, squares = 0;
  for (int64_t i = 0; i < n; ++i) sum += double(ToFloat(x[i]));
  const double mean = sum / double(n);
  for (int64_t i = 0; i < n; ++i) squares += (ToFloat(x[i]) - mean) * (ToFloat(x[i]) - mean);
  const double scale = 1.0 / std::sqrt(squares / double(n) + eps);
  for (int64_t i = 0; i < n; ++i) {
    const double gain = (w ? double(ToFloat(w[i])) : 1.0) + offset, shift = bias ? double(ToFloat(bias[i])) : 0.0;
    FromFloat(float((ToFloat(x[i]) - mean) * scale * gain + shift), out + i);
  }
}

// `out` may be `x`; w == nullptr means 1, bias == nullptr means 0. offset: added to w.
template <class T>
HWY_INLINE void LayerRow(const T* x, const T* w, const T* bias, T* out, int64_t n, float eps, float offset) {
  const float mean = SumOf(x, n) / float(n);
  const Deviations deviations = SumDeviations(x, n, mean);
  const float rest_of_mean = deviations.sum / float(n);
  const float centred = deviations.squares / float(n) - rest_of_mean * rest_of_mean;
  const float variance = (centred < 0 ? 0.0f : centred) + eps;  // NaN stays NaN
  if (!(variance > kSmallestSquare && variance < kLargestSquare)) [[unlikely]] {
    return LayerRowInDouble(x, w, bias, out, n, eps, offset);
  }
  const float scale = 1.0f / std::sqrt(variance);
  const auto scaled = [=](auto d, auto v, auto gain, auto shift) HWY_ATTR {
    const auto centred = hn::Sub(hn::Sub(v, hn::Set(d, mean)), hn::Set(d, rest_of_mean));
    return hn::MulAdd(centred, hn::Mul(hn::Set(d, scale), hn::Add(gain, hn::Set(d, offset))), shift);
  };
  if (w && bias) return MapRow(out, n, scaled, x, w, bias);
  const auto without_bias = [&](auto d, auto v, auto gain) HWY_ATTR { return scaled(d, v, gain, hn::Zero(d)); };
  const auto without_weight = [&](auto d, auto v, auto shift)
                                  HWY_ATTR { return scaled(d, v, hn::Set(d, 1.0f), shift); };
  if (w) return MapRow(out, n, without_bias, x, w);
  if (bias) return MapRow(out, n, without_weight, x, bias);
  MapRow(
      out, n, [&](auto d, auto v) HWY_ATTR { return without_bias(d, v, hn::Set(d, 1.0f)); }, x);
}

}  // namespace lz::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
