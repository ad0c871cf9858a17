// RMSNorm over the last axis, CPU SIMD: one pass for the sum of squares, one for the scaling (a row is in L1 by then).
//   input  [..., hidden]  f32|f16|bf16, rows dense, leading strides free
//   weight [hidden]       dtype of input, optional
//   output [..., hidden]  dtype of input; may alias input
// Workspace: none. Deterministic. Source: own; formula from arXiv:1910.07467 eq. 4. FP32 sums in 4 x lanes parts.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/norm/rms/hwy.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "hwy/highway.h"
#include "kernels/norm/call.h"
#include "kernels/norm/rms_row.h"
#include "kernels/norm/spec.h"
#include "ops/norm/rms.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE {
namespace {
using namespace lz::ops::norm_rms;

template <class T>
int32_t Run(const lz_kernel_args* args) {
  const NormCall<T> call(args, {kInput, kWeight, kOutput, kEps, kWeightOffset});
  return call.ForRows(
      [&](const T* x, T* out, int64_t) { RmsRow(x, call.weight, out, call.hidden, call.eps, call.offset); });
}
LZ_LAUNCH_BY_FLOAT(kInput);

}  // namespace
}  // namespace lz::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
LZ_HWY_KERNEL(RmsSpec("hwy.norm.rms", &LaunchBest));
#endif
