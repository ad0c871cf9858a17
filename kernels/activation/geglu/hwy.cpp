// gelu(gate) * up, CPU SIMD, FP32 arithmetic, one pass.
//   gate, up [..., n]  f32|f16|bf16, rows dense, leading strides free
//   output   [..., n]  dtype of gate; may alias gate or up
// Workspace: none. Deterministic. Source: own; formulas from arXiv:2002.05202 eq. 5 and arXiv:1606.08415.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/activation/geglu/hwy.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "hwy/highway.h"
#include "kernels/activation/gated.h"
#include "kernels/launch.h"
#include "kernels/simd.h"
#include "kernels/simd_math_bf16.h"
#include "kernels/spec.h"
#include "ops/activation/geglu.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE {
namespace {
using namespace lz::ops::activation_geglu;

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor &gate = args->tensors[kGate], &up = args->tensors[kUp], &out = args->tensors[kOutput];
  if (args->scalars[kApproximate].value.i == kTanh) {
    return RunGated(args, gate, up, out,
                    [](auto t, auto d, auto g, auto u) HWY_ATTR { return hn::Mul(GeluTanhTo<decltype(t)>(d, g), u); });
  }
  return RunGated(args, gate, up, out,
                  [](auto t, auto d, auto g, auto u) HWY_ATTR { return hn::Mul(GeluErfTo<decltype(t)>(d, g), u); });
}

}  // namespace
}  // namespace lz::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lz {
namespace {
LZ_HWY_EXPORT(Launch);

constexpr std::array<std::string_view, 1> kAccepts = {"approximate"};
constexpr std::array kFamily = {CpuSpec("hwy.activation.geglu", &LaunchBest, {.accepts = kAccepts})};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
#endif  // HWY_ONCE
