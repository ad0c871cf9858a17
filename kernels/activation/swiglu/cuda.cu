// silu(gate) * up on CUDA, one pass.
//   gate, up [..., n]  f32|f16|bf16, rows dense, leading strides free
//   output   [..., n]  dtype of gate; may alias gate or up
// Workspace: none. Deterministic. Safe in graph captures. Source: own; formula from arXiv:2002.05202 eq. 5.
#include "kernels/activation/gated_cuda.h"
#include "kernels/spec.h"
#include "ops/activation/swiglu.h"

namespace lz {
namespace {
using namespace lz::ops::activation_swiglu;

int32_t Launch(const lz_kernel_args* args) {
  return LaunchGated(args, args->tensors[kGate], args->tensors[kUp], args->tensors[kOutput],
                     ActivationOf<ops::activation::kSilu>());
}

constexpr auto kConstraints = std::to_array<Constraint>({kOnCompiledSm, kOnDriver});
constexpr std::array kFamily = {CudaSpec("cuda.activation.swiglu", &Launch, {.constraints = kConstraints})};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
