// An activation function of every element, CPU SIMD, FP32 arithmetic, one pass.
//   input, output [..., n]  f32|f16|bf16, rows dense, leading strides free; output may alias input
// Workspace: none. Deterministic. Source: own; definition in ops/activation/pointwise.h.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/activation/pointwise/hwy.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "core/kernel.h"
#include "hwy/highway.h"
#include "kernels/activation/functions.h"
#include "kernels/rows.h"
#include "ops/activation/pointwise.h"

HWY_BEFORE_NAMESPACE();
namespace lz {
namespace HWY_NAMESPACE {
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
}  // namespace HWY_NAMESPACE
}  // namespace lz
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lz {
namespace {
HWY_EXPORT(Launch);
int32_t LaunchBest(const lz_kernel_args* args) { return HWY_DYNAMIC_DISPATCH(Launch)(args); }

constexpr auto kFamily = std::to_array<KernelSpec>({
    {.id = "hwy.activation.pointwise",
     .operation = "activation.pointwise",
     .dtypes = kF32F16BF16,
     .strides = Strides::kLastDimDense,
     .priority = 80,
     .deterministic = true,
     .launch = &LaunchBest},
});
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
#endif  // HWY_ONCE
