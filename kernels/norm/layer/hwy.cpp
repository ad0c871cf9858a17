// LayerNorm over the last axis, CPU SIMD: a pass for the mean, one for the variance around it, one for the result (a
// row is in L1 after the first).
//   input        [..., hidden]  f32|f16|bf16, rows dense, leading strides free
//   weight, bias [hidden]       dtype of input, each optional
//   output       [..., hidden]  dtype of input; may alias input
// Workspace: none. Deterministic. Source: own; formula from arXiv:1607.06450 eq. 4. FP32 sums in 2 or 4 x lanes parts,
// the mean corrected by the sum of deviations.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/norm/layer/hwy.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "hwy/highway.h"
#include "kernels/norm/call.h"
#include "kernels/norm/layer_row.h"
#include "kernels/norm/spec.h"
#include "ops/norm/layer.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE {
namespace {
using namespace lz::ops::norm_layer;

template <class T>
int32_t Run(const lz_kernel_args* args) {
  const NormCall<T> call(args, {kInput, kWeight, kOutput, kEps, kWeightOffset});
  const T* bias = call.Optional(kBias);
  return call.ForRows(
      [&](const T* x, T* out, int64_t) { LayerRow(x, call.weight, bias, out, call.hidden, call.eps, call.offset); });
}
LZ_LAUNCH_BY_FLOAT(kInput);

}  // namespace
}  // namespace lz::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
LZ_HWY_KERNEL(LayerSpec("hwy.norm.layer", &LaunchBest));
#endif
