// silu(gate) * up on CUDA, one pass.
//   gate, up [..., n]  f32|f16|bf16, rows dense, leading strides free
//   output   [..., n]  dtype of gate; may alias gate or up
// Workspace: none. Deterministic. Safe in graph captures. Source: own; formula from arXiv:2002.05202 eq. 5.
#include "kernels/activation/gated_cuda.h"
#include "ops/activation/swiglu.h"

namespace lz {
namespace {
using namespace lz::ops::activation_swiglu;

int32_t Launch(const lz_kernel_args* args) {
  return LaunchGated(args, args->tensors[kGate], args->tensors[kUp], args->tensors[kOutput],
                     ActivationOf<ops::activation::kSilu>());
}

constexpr auto kConstraints = std::to_array<Constraint>({kOnCompiledSm, kOnDriver});
constexpr auto kFamily = std::to_array<KernelSpec>({
    {.id = "cuda.activation.swiglu",
     .operation = "activation.swiglu",
     .platform = Platform::kCuda,
     .dtypes = kF32F16BF16,
     .constraints = kConstraints,
     .strides = Strides::kLastDimDense,
     .priority = 80,
     .deterministic = true,
     .cuda_graph_safe = true,
     .launch = &Launch},
});
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
