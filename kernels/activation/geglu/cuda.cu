// gelu(gate) * up on CUDA, one pass; by the error function or its tanh approximation.
//   gate, up [..., n]  f32|f16|bf16, rows dense, leading strides free
//   output   [..., n]  dtype of gate; may alias gate or up
// Workspace: none. Deterministic. Safe in graph captures. Source: own; formulas:
// arXiv:2002.05202 eq. 5 and arXiv:1606.08415.
#include "kernels/activation/gated_cuda.h"
#include "kernels/spec.h"
#include "ops/activation/geglu.h"

namespace lz {
namespace {
using namespace lz::ops::activation_geglu;

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor &gate = args->tensors[kGate], &up = args->tensors[kUp], &out = args->tensors[kOutput];
  if (args->scalars[kApproximate].value.i == kTanh)
    return LaunchGated(args, gate, up, out, ActivationOf<ops::activation::kGeluTanh>());
  return LaunchGated(args, gate, up, out, ActivationOf<ops::activation::kGelu>());
}

constexpr auto kConstraints = std::to_array<Constraint>({kOnCompiledSm, kOnDriver});
constexpr std::array<std::string_view, 1> kAccepts = {"approximate"};
constexpr std::array kFamily = {
    CudaSpec("cuda.activation.geglu", &Launch, {.constraints = kConstraints, .accepts = kAccepts})};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
