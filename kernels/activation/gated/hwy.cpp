// The gated product of a packed projection, CPU SIMD, FP32 arithmetic, one pass.
//   input  [..., 2 n]  f32|f16|bf16, rows dense, leading strides free; gate and up in halves
//   output [..., n]    dtype of input; must not overlap input
// Workspace: none. Deterministic. Source: own; definition in ops/activation/gated.h.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/activation/gated/hwy.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "core/kernel.h"
#include "hwy/highway.h"
#include "kernels/activation/functions.h"
#include "kernels/activation/gated.h"
#include "ops/activation/gated.h"

HWY_BEFORE_NAMESPACE();
namespace lz {
namespace HWY_NAMESPACE {
namespace {
using namespace lz::ops::activation_gated;

int32_t Launch(const lz_kernel_args* args) {
  const GateFunction function(&args->scalars[kActivation]);
  return RunPackedGated(args, args->tensors[kInput], args->tensors[kOutput],
                        [&](auto t, auto d, auto g, auto u) HWY_ATTR { return function.Gated<decltype(t)>(d, g, u); });
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
    {"interleaved", Rel::kEq, 0},
});
constexpr auto kFamily = std::to_array<KernelSpec>({
    {.id = "hwy.activation.gated",
     .operation = "activation.gated",
     .dtypes = kF32F16BF16,
     .constraints = kConstraints,
     .accepts = kAcceptsAll,
     .strides = Strides::kLastDimDense,
     .priority = 80,
     .deterministic = true,
     .launch = &LaunchBest},
});
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
#endif  // HWY_ONCE
