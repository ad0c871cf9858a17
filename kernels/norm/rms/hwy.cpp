// RMSNorm over the last axis, CPU SIMD: one pass for the sum of squares, one for the scaling.
//   input  [..., hidden]  f32|bf16, contiguous      weight [hidden]  dtype of input, optional
//   output [..., hidden]  dtype of input; may alias input
// Workspace: none. Deterministic. Source: own; formula from arXiv:1910.07467 eq. 4. FP32 sums in 4 x lanes parts.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/norm/rms/hwy.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "core/kernel.h"
#include "hwy/highway.h"
#include "kernels/launch.h"
#include "kernels/simd.h"
#include "ops/norm/rms.h"

HWY_BEFORE_NAMESPACE();
namespace lz {
namespace HWY_NAMESPACE {
namespace {
using namespace lz::ops::norm_rms;

template <class T>
void Row(const T* HWY_RESTRICT x, const T* HWY_RESTRICT w, T* HWY_RESTRICT out, int64_t hidden, float eps,
         float offset) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  auto s0 = hn::Zero(d), s1 = hn::Zero(d), s2 = hn::Zero(d), s3 = hn::Zero(d);
  int64_t i = 0;
  for (; i + 4 * lanes <= hidden; i += 4 * lanes) {
    const auto a = LoadF32(d, x + i), b = LoadF32(d, x + i + lanes);
    const auto c = LoadF32(d, x + i + 2 * lanes), e = LoadF32(d, x + i + 3 * lanes);
    s0 = hn::MulAdd(a, a, s0);
    s1 = hn::MulAdd(b, b, s1);
    s2 = hn::MulAdd(c, c, s2);
    s3 = hn::MulAdd(e, e, s3);
  }
  for (; i + lanes <= hidden; i += lanes) {
    const auto a = LoadF32(d, x + i);
    s0 = hn::MulAdd(a, a, s0);
  }
  float sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3))));
  for (; i < hidden; ++i) sum += ToFloat(x[i]) * ToFloat(x[i]);

  const float scale = 1.0f / std::sqrt(sum / float(hidden) + eps);
  const auto vscale = hn::Set(d, scale), voffset = hn::Set(d, offset);
  for (i = 0; i + lanes <= hidden; i += lanes) {
    const auto gain = hn::Add(w ? LoadF32(d, w + i) : hn::Set(d, 1.0f), voffset);
    StoreF32(d, hn::Mul(hn::Mul(LoadF32(d, x + i), vscale), gain), out + i);
  }
  for (; i < hidden; ++i) {
    FromFloat(ToFloat(x[i]) * scale * ((w ? ToFloat(w[i]) : 1.0f) + offset), out + i);
  }
}

template <class T>
int32_t Run(const lz_kernel_args* args) {
  const lz_tensor& x = args->tensors[kInput];
  const lz_tensor& w = args->tensors[kWeight];
  const int64_t hidden = x.shape[x.ndim - 1];
  const T* px = Data<const T>(x);
  const T* pw = Given(w) ? Data<const T>(w) : nullptr;
  T* pout = Data<T>(args->tensors[kOutput]);
  const float eps = float(args->scalars[kEps].value.f), offset = float(args->scalars[kWeightOffset].value.f);
  // 16k elements take about 2 us on one core: less is not worth waking another.
  ParallelFor(args, NumRows(x), 16384 / (hidden + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) Row(px + r * hidden, pw, pout + r * hidden, hidden, eps, offset);
  });
  return 0;
}

int32_t Launch(const lz_kernel_args* args) {
  return DTypeOf(args->tensors[kInput]) == DType::kF32 ? Run<float>(args) : Run<BF16>(args);
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
});
constexpr std::array<std::string_view, 2> kAccepts = {"weight", "weight_offset"};
constexpr auto kFamily = std::to_array<KernelSpec>({
    {.id = "hwy.norm.rms",
     .operation = "norm.rms",
     .dtypes = kF32BF16,
     .constraints = kConstraints,
     .accepts = kAccepts,
     .strides = Strides::kContiguous,
     .priority = 80,
     .deterministic = true,
     .launch = &LaunchBest},
});
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
#endif  // HWY_ONCE
