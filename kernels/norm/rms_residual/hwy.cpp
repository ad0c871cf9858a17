// Residual addition and RMSNorm of the rounded sum over the last axis, CPU SIMD: one pass adds, one scales.
//   input, residual      [..., hidden]  f32|f16|bf16, rows dense, leading strides free
//   weight               [hidden]       dtype of input, optional
//   output, residual_out [..., hidden]  dtype of input; output may alias input, residual_out may alias residual
// Workspace: none. Deterministic. Source: own; formula from arXiv:1910.07467 eq. 4. FP32 sums in 2 x lanes parts.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/norm/rms_residual/hwy.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "hwy/highway.h"
#include "kernels/cpu_spec.h"
#include "kernels/launch.h"
#include "kernels/norm/rms_row.h"
#include "kernels/simd.h"
#include "ops/norm/rms_residual.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE {
namespace {
using namespace lz::ops::norm_rms_residual;

// sum[i] = x[i] + r[i] rounded to T; returns the sum of squares of the rounded values.
template <class T>
HWY_INLINE float AddRow(const T* x, const T* r, T* sum, int64_t n) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  auto s0 = hn::Zero(d), s1 = hn::Zero(d);
  int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    const auto v = LoadTwo(d, x + i), u = LoadTwo(d, r + i);
    StoreTwo(d, hn::Add(v.a, u.a), hn::Add(v.b, u.b), sum + i);
    const auto [a, b] = LoadTwo(d, sum + i);
    s0 = hn::MulAdd(a, a, s0);
    s1 = hn::MulAdd(b, b, s1);
  }
  for (; i < n; i += lanes) {
    const size_t rest = size_t(HWY_MIN(n - i, lanes));
    StoreF32N(d, hn::Add(LoadF32N(d, x + i, rest), LoadF32N(d, r + i, rest)), sum + i, rest);
    const auto a = LoadF32N(d, sum + i, rest);
    s0 = hn::MulAdd(a, a, s0);
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(s0, s1)));
}

template <class T>
int32_t Run(const lz_kernel_args* args) {
  const lz_tensor& x = args->tensors[kInput];
  const lz_tensor& w = args->tensors[kWeight];
  const int64_t hidden = x.shape[x.ndim - 1];
  const T* px = Data<const T>(x);
  const T* pr = Data<const T>(args->tensors[kResidual]);
  const T* pw = Given(w) ? Data<const T>(w) : nullptr;
  T* pout = Data<T>(args->tensors[kOutput]);
  T* psum = Data<T>(args->tensors[kResidualOut]);
  const float eps = float(args->scalars[kEps].value.f), offset = float(args->scalars[kWeightOffset].value.f);
  const RowOffsets x_row(x), r_row(args->tensors[kResidual]);
  const RowOffsets out_row(args->tensors[kOutput]), sum_row(args->tensors[kResidualOut]);
  // 16k elements take about 3 us on one core: less does not pay for waking another thread.
  ParallelFor(args, NumRows(x), 16384 / (hidden + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      T* sum = psum + sum_row[r];
      const float squares = AddRow(px + x_row[r], pr + r_row[r], sum, hidden);
      NormRow(sum, pw, pout + out_row[r], hidden, squares, eps, offset);
    }
  });
  return 0;
}

LZ_LAUNCH_BY_FLOAT(kInput);

}  // namespace
}  // namespace lz::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lz {
namespace {
LZ_HWY_EXPORT(Launch);

constexpr auto kConstraints = std::to_array<Constraint>({
    {"weight.same_dtype", Rel::kEq, 1},
});
constexpr std::array<std::string_view, 2> kAccepts = {"weight", "weight_offset"};
constexpr std::array kFamily = {CpuSpec("hwy.norm.rms.residual", &LaunchBest, kAccepts, kConstraints)};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
#endif  // HWY_ONCE
