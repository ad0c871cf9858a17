// Residual addition and LayerNorm of the rounded sum over the last axis, CPU SIMD: a pass for the sum, then those of
// norm.layer (a row is in L1 by then).
//   input, residual      [..., hidden]  f32|f16|bf16, rows dense, leading strides free
//   weight, bias         [hidden]       dtype of input, each optional
//   output, residual_out [..., hidden]  dtype of input; output may alias input, residual_out may alias residual
// Workspace: none. Deterministic. Source: own; formula from arXiv:1607.06450 eq. 4. FP32 sums in 2 or 4 x lanes
// parts, the mean corrected by the sum of deviations.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/norm/layer_residual/hwy.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "hwy/highway.h"
#include "kernels/cpu_spec.h"
#include "kernels/launch.h"
#include "kernels/norm/layer_row.h"
#include "kernels/rows.h"
#include "kernels/simd.h"
#include "ops/norm/layer_residual.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE {
namespace {
using namespace lz::ops::norm_layer_residual;

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
  const float eps = float(args->scalars[kEps].value.f), offset = float(args->scalars[kWeightOffset].value.f);
  const T* pr = Data<const T>(args->tensors[kResidual]);
  T* psum = Data<T>(args->tensors[kResidualOut]);
  const RowOffsets x_row(x), r_row(args->tensors[kResidual]);
  const RowOffsets out_row(args->tensors[kOutput]), sum_row(args->tensors[kResidualOut]);
  // 16k elements take about 4 us on one core: less does not pay for waking another thread.
  ParallelFor(args, NumRows(x), 16384 / (hidden + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      T* sum = psum + sum_row[i];
      const auto add = [](auto, auto a, auto b) HWY_ATTR { return hn::Add(a, b); };
      MapRow(sum, hidden, add, px + x_row[i], pr + r_row[i]);
      LayerRow(sum, pw, pb, pout + out_row[i], hidden, eps, offset);
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
    {"bias.same_dtype", Rel::kEq, 1},
});
constexpr std::array<std::string_view, 3> kAccepts = {"weight", "bias", "weight_offset"};
constexpr std::array kFamily = {CpuSpec("hwy.norm.layer.residual", &LaunchBest, kAccepts, kConstraints)};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
#endif  // HWY_ONCE
