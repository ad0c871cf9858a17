// silu of the first half of each row times its second half, CPU SIMD, FP32 arithmetic, one pass.
//   input  [..., 2 n]  f32|f16|bf16, rows dense, leading strides free
//   output [..., n]    dtype of input; must not overlap input
// Workspace: none. Deterministic. Source: own; formula from arXiv:2002.05202 eq. 5.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/activation/silu_and_mul/hwy.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "hwy/highway.h"
#include "kernels/activation/gated.h"
#include "kernels/launch.h"
#include "kernels/simd.h"
#include "kernels/simd_math_bf16.h"
#include "kernels/spec.h"
#include "ops/activation/silu_and_mul.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE {
namespace {
using namespace lz::ops::activation_silu_and_mul;

int32_t Launch(const lz_kernel_args* args) {
  return RunPackedGated(args, args->tensors[kInput], args->tensors[kOutput],
                        [](auto t, auto d, auto g, auto u) HWY_ATTR { return hn::Mul(SiluTo<decltype(t)>(d, g), u); });
}

}  // namespace
}  // namespace lz::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
LZ_HWY_KERNEL(CpuSpec("hwy.activation.silu_and_mul", &LaunchBest));
#endif
