// An activation function of every element, CPU SIMD, FP32 arithmetic, one pass.
//   input, output [..., n]  f32|f16|bf16, rows dense, leading strides free; output may alias input
// Workspace: none. Deterministic. Source: own; definition in ops/activation/pointwise.h.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/activation/pointwise/hwy.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "hwy/highway.h"
#include "kernels/activation/functions.h"
#include "kernels/rows.h"
#include "kernels/spec.h"
#include "ops/activation/pointwise.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE {
namespace {
using namespace lz::ops::activation_pointwise;

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor &x = args->tensors[kInput], &out = args->tensors[kOutput];
  const int64_t function = args->scalars[kFunction].value.i;
  return WithFloatType(DTypeOf(x), [&](auto t) {
    using T = decltype(t);
    MapRows<kLongFunction>(
        args, NumRows(x), x.ndim > 0 ? x.shape[x.ndim - 1] : 1,
        [function](auto d, auto v) HWY_ATTR { return Activate<T>(d, v, function, 1.0f); }, RowsOf<T>(out),
        RowsOf<const T>(x));
    return int32_t{0};
  });
}
}  // namespace
}  // namespace lz::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
LZ_HWY_KERNEL(CpuSpec("hwy.activation.pointwise", &LaunchBest));
#endif
