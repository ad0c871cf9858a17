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
#include "kernels/norm/call.h"
#include "kernels/norm/layer_row.h"
#include "kernels/norm/spec.h"
#include "kernels/rows.h"
#include "ops/norm/layer_residual.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE {
namespace {
using namespace lz::ops::norm_layer_residual;

template <class T>
int32_t Run(const lz_kernel_args* args) {
  const NormCall<T> call(args, {kInput, kWeight, kOutput, kEps, kWeightOffset});
  const T* bias = call.Optional(kBias);
  const Rows<const T> residual = RowsOf<const T>(args->tensors[kResidual]);
  const Rows<T> sums = RowsOf<T>(args->tensors[kResidualOut]);
  return call.ForRows([&](const T* x, T* out, int64_t r) {
    T* sum = sums.data + sums.offsets[r];
    const auto add = [](auto, auto a, auto b) HWY_ATTR { return hn::Add(a, b); };
    MapRow(sum, call.hidden, add, x, residual.data + residual.offsets[r]);
    LayerRow(sum, call.weight, bias, out, call.hidden, call.eps, call.offset);
  });
}
LZ_LAUNCH_BY_FLOAT(kInput);

}  // namespace
}  // namespace lz::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
LZ_HWY_KERNEL(LayerSpec("hwy.norm.layer.residual", &LaunchBest));
#endif
