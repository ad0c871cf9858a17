// LayerNorm over the last axis, CPU SIMD: a pass for the mean, one for the variance about it, one for the result (a row
// is in L1 after the first).
//   input        [..., hidden]  f32|f16|bf16, rows dense, leading strides free
//   weight, bias [hidden]       dtype of input, each optional
//   output       [..., hidden]  dtype of input; may alias input
// Workspace: none. Deterministic. Source: own; formula from arXiv:1607.06450 eq. 4. FP32 sums in 2 or 4 x lanes
// parts, the mean corrected by the sum of deviations.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/norm/layer/hwy.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include <cmath>

#include "core/kernel.h"
#include "hwy/highway.h"
#include "kernels/launch.h"
#include "kernels/simd.h"
#include "ops/norm/layer.h"

HWY_BEFORE_NAMESPACE();
namespace lz {
namespace HWY_NAMESPACE {
namespace {
using namespace lz::ops::norm_layer;

template <class T>
HWY_INLINE float Sum(const T* x, int64_t n) {
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

// `out` may be `x`; w == nullptr means 1, bias == nullptr means 0.
template <class T>
HWY_INLINE void Row(const T* x, const T* w, const T* bias, T* out, int64_t n, float eps) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  const float mean = Sum(x, n) / float(n);
  const Deviations deviations = SumDeviations(x, n, mean);
  const float rest_of_mean = deviations.sum / float(n);
  const float variance = HWY_MAX(deviations.squares / float(n) - rest_of_mean * rest_of_mean, 0.0f);
  const float scale = 1.0f / std::sqrt(variance + eps);
  const auto centre = [vmean = hn::Set(d, mean), vrest = hn::Set(d, rest_of_mean)](auto v)
                          HWY_ATTR { return hn::Sub(hn::Sub(v, vmean), vrest); };
  const auto vscale = hn::Set(d, scale), one = hn::Set(d, 1.0f), zero = hn::Zero(d);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto gain = hn::Mul(vscale, w ? LoadF32(d, w + i) : one);
    const auto shift = bias ? LoadF32(d, bias + i) : zero;
    StoreF32(d, hn::MulAdd(centre(LoadF32(d, x + i)), gain, shift), out + i);
  }
  if (i < n) {
    const size_t rest = size_t(n - i);
    const auto gain = hn::Mul(vscale, w ? LoadF32N(d, w + i, rest) : one);
    const auto shift = bias ? LoadF32N(d, bias + i, rest) : zero;
    StoreF32N(d, hn::MulAdd(centre(LoadF32N(d, x + i, rest)), gain, shift), out + i, rest);
  }
}

template <class T>
int32_t Run(const lz_kernel_args* args) {
  const lz_tensor& x = args->tensors[kInput];
  const lz_tensor& w = args->tensors[kWeight];
  const lz_tensor& b = args->tensors[kBias];
  const int64_t hidden = x.shape[x.ndim - 1];
  const T* px = Data<const T>(x);
  const T* pw = Given(w) ? Data<const T>(w) : nullptr;
  const T* pb = Given(b) ? Data<const T>(b) : nullptr;
  T* pout = Data<T>(args->tensors[kOutput]);
  const float eps = float(args->scalars[kEps].value.f);
  const RowOffsets x_row(x), out_row(args->tensors[kOutput]);
  // 16k elements take about 3 us on one core: less is not worth waking another.
  ParallelFor(args, NumRows(x), 16384 / (hidden + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) Row(px + x_row[r], pw, pb, pout + out_row[r], hidden, eps);
  });
  return 0;
}

int32_t Launch(const lz_kernel_args* args) {
  return WithFloatType(DTypeOf(args->tensors[kInput]), [args](auto t) { return Run<decltype(t)>(args); });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lz
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lz {
namespace {
HWY_EXPORT(Launch);
int32_t LaunchBest(const lz_kernel_args* args) { return HWY_DYNAMIC_DISPATCH(Launch)(args); }

constexpr auto kConstraints = std::to_array<Constraint>({
    {"weight.same_dtype", Rel::kEq, 1},
    {"bias.same_dtype", Rel::kEq, 1},
});
constexpr std::array<std::string_view, 2> kAccepts = {"weight", "bias"};
constexpr auto kFamily = std::to_array<KernelSpec>({
    {.id = "hwy.norm.layer",
     .operation = "norm.layer",
     .dtypes = kF32F16BF16,
     .constraints = kConstraints,
     .accepts = kAccepts,
     .strides = Strides::kLastDimDense,
     .priority = 80,
     .deterministic = true,
     .launch = &LaunchBest},
});
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
#endif  // HWY_ONCE
