// Linear with weights in panels of 64 columns by oneDNN's matmul (onednn.h), which calls this order BA16a64b.
//   input  [..., k]  f32|bf16 contiguous          panels [n / 64, k, 64]  dtype of input
//   bias   [n]       dtype of input, optional     output [..., n]
// Workspace: the output of 2 to 64 rows. Source: oneDNN. FP32 sums in its order.
#include "kernels/gemm/onednn_parallel.h"
#include "ops/mlp/linear/panels.h"

namespace lz {
namespace {
using namespace lz::ops::mlp_linear_panels;

onednn::Operands Of(const lz_kernel_args* args) {
  const lz_tensor* t = args->tensors;
  const int64_t* shape = t[kPanels].shape;
  return {t[kInput], t[kPanels], t[kBias], t[kOutput], shape[0] * kPanel, shape[1], /*panels=*/true};
}
uint64_t Workspace(const lz_kernel_args* args) { return onednn::WorkspaceOf(Of(args)); }
int32_t Launch(const lz_kernel_args* args) { return onednn::MultiplyInParts(args, Of(args)); }

constexpr auto kF32Constraints = std::to_array<Constraint>({
    {"k", Rel::kGt, 0},
    {"device.isa", Rel::kHasBits, kIsaAvx512},
});
constexpr auto kBF16Constraints = std::to_array<Constraint>({
    {"k", Rel::kGt, 0},
    {"device.isa", Rel::kHasBits, kIsaAvx512 | kIsaAvx512Bf16},
});
constexpr std::array kFamily = {
    onednn::Spec<onednn::kF32, /*panels=*/true>("onednn.mlp.linear.panels", "mlp.linear.panels", kF32Constraints,
                                                &Launch, &Workspace),
    onednn::Spec<onednn::kBF16, /*panels=*/true>("onednn.mlp.linear.panels_bf16", "mlp.linear.panels", kBF16Constraints,
                                                 &Launch, &Workspace),
};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
