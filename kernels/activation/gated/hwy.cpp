// The gated product of a packed projection, CPU SIMD, FP32 arithmetic, one pass.
//   input  [..., 2 n]  f32|f16|bf16, rows dense, leading strides free; gate and up in halves
//   output [..., n]    dtype of input; must not overlap input
// Workspace: none. Deterministic. Source: own; definition in ops/activation/gated.h.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/activation/gated/hwy.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "hwy/highway.h"
#include "kernels/activation/functions.h"
#include "kernels/activation/gated.h"
#include "kernels/spec.h"
#include "ops/activation/gated.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE {
namespace {
using namespace lz::ops::activation_gated;

int32_t Launch(const lz_kernel_args* args) {
  const GateFunction function(&args->scalars[kActivation]);
  return RunPackedGated(args, args->tensors[kInput], args->tensors[kOutput],
                        [&](auto t, auto d, auto g, auto u) HWY_ATTR { return function.Gated<decltype(t)>(d, g, u); });
}
}  // namespace
}  // namespace lz::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lz {
namespace {
LZ_HWY_EXPORT(Launch);

constexpr auto kConstraints = std::to_array<Constraint>({
    {"interleaved", Rel::kEq, 0},
});
constexpr std::array kFamily = {
    CpuSpec("hwy.activation.gated", &LaunchBest, {.constraints = kConstraints, .accepts = kAcceptsAll})};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
#endif  // HWY_ONCE
