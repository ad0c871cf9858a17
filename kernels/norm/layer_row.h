// One row of a layer norm, CPU SIMD: shared by norm.layer and norm.layer.residual.
// Include inside HWY_NAMESPACE's file only, after kernels/simd.h.
#if defined(LZ_KERNELS_NORM_LAYER_ROW_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LZ_KERNELS_NORM_LAYER_ROW_H_
#undef LZ_KERNELS_NORM_LAYER_ROW_H_
#else
#define LZ_KERNELS_NORM_LAYER_ROW_H_
#endif

#include <cmath>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/simd.h"

HWY_BEFORE_NAMESPACE();
namespace lz {
namespace HWY_NAMESPACE {

template <class T>
HWY_INLINE float SumOf(const T* x, int64_t n) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  auto s0 = hn::Zero(d), s1 = hn::Zero(d), s2 = hn::Zero(d), s3 = hn::Zero(d);
  int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    s0 = hn::Add(s0, LoadF32(d, x + i));
    s1 = hn::Add(s1, LoadF32(d, x + i + lanes));
    s2 = hn::Add(s2, LoadF32(d, x + i + 2 * lanes));
    s3 = hn::Add(s3, LoadF32(d, x + i + 3 * lanes));
  }
  for (; i + lanes <= n; i += lanes) s0 = hn::Add(s0, LoadF32(d, x + i));
  if (i < n) s1 = hn::Add(s1, LoadF32N(d, x + i, size_t(n - i)));
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3))));
}

struct Deviations {
  float sum, squares;
};
// Of x - mean: the sum is what rounding left of the mean, so that both mean and variance can be corrected by it.
template <class T>
HWY_INLINE Deviations SumDeviations(const T* x, int64_t n, float mean) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  const auto m = hn::Set(d, mean);
  auto s0 = hn::Zero(d), s1 = hn::Zero(d), q0 = hn::Zero(d), q1 = hn::Zero(d);
  int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    const auto a = hn::Sub(LoadF32(d, x + i), m), b = hn::Sub(LoadF32(d, x + i + lanes), m);
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

// `out` may be `x`; w == nullptr means 1, bias == nullptr means 0. offset: added to w.
template <class T>
HWY_INLINE void LayerRow(const T* x, const T* w, const T* bias, T* out, int64_t n, float eps, float offset) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  const float mean = SumOf(x, n) / float(n);
  const Deviations deviations = SumDeviations(x, n, mean);
  const float rest_of_mean = deviations.sum / float(n);
  const float variance = HWY_MAX(deviations.squares / float(n) - rest_of_mean * rest_of_mean, 0.0f);
  const float scale = 1.0f / std::sqrt(variance + eps);
  const auto centre = [vmean = hn::Set(d, mean), vrest = hn::Set(d, rest_of_mean)](auto v)
                          HWY_ATTR { return hn::Sub(hn::Sub(v, vmean), vrest); };
  const auto vscale = hn::Set(d, scale), voffset = hn::Set(d, offset), one = hn::Set(d, 1.0f), zero = hn::Zero(d);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto gain = hn::Mul(vscale, hn::Add(w ? LoadF32(d, w + i) : one, voffset));
    const auto shift = bias ? LoadF32(d, bias + i) : zero;
    StoreF32(d, hn::MulAdd(centre(LoadF32(d, x + i)), gain, shift), out + i);
  }
  if (i < n) {
    const size_t rest = size_t(n - i);
    const auto gain = hn::Mul(vscale, hn::Add(w ? LoadF32N(d, w + i, rest) : one, voffset));
    const auto shift = bias ? LoadF32N(d, bias + i, rest) : zero;
    StoreF32N(d, hn::MulAdd(centre(LoadF32N(d, x + i, rest)), gain, shift), out + i, rest);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace lz
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
