// silu(gate) * up, CPU SIMD, FP32 arithmetic, one pass.
//   gate, up [..., n]  f32|f16|bf16, rows dense, leading strides free
//   output   [..., n]  dtype of gate; may alias gate or up
// Workspace: none. Deterministic. Source: own; formula from arXiv:2002.05202 eq. 5.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/activation/swiglu/hwy.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "hwy/highway.h"
#include "kernels/activation/gated.h"
#include "kernels/launch.h"
#include "kernels/simd.h"
#include "kernels/simd_math_bf16.h"
#include "kernels/spec.h"
#include "ops/activation/swiglu.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE {
namespace {
using namespace lz::ops::activation_swiglu;

int32_t Launch(const lz_kernel_args* args) {
  return RunGated(args, args->tensors[kGate], args->tensors[kUp], args->tensors[kOutput],
                  [](auto t, auto d, auto g, auto u) HWY_ATTR { return hn::Mul(SiluTo<decltype(t)>(d, g), u); });
}

}  // namespace
}  // namespace lz::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
LZ_HWY_KERNEL(CpuSpec("hwy.activation.swiglu", &LaunchBest));
#endif
