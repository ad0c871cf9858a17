// Linear with weights in panels of 64 columns by oneDNN's matmul (onednn.h), which calls this order BA16a64b.
//   input  [..., k]  f32|bf16 contiguous          panels [n / 64, k, 64]  dtype of input
//   bias   [n]       dtype of input, optional     output [..., n]
// Workspace: the output of 2 to 64 rows. Source: oneDNN. FP32 sums in its order.
#include "core/kernel.h"
#include "kernels/mlp/linear/onednn_parts.h"
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
constexpr auto kFamily = std::to_array<KernelSpec>({
    {.id = "onednn.mlp.linear.panels",
     .operation = "mlp.linear.panels",
     .dtypes = Mask(DType::kF32),
     .constraints = kF32Constraints,
     .accepts = kAcceptsAll,
     .priority = kLibraryPriority,
     .launch = &Launch,
     .workspace = &Workspace,
     .open = &onednn::OpenFor<onednn::kF32, /*panels=*/true>},
    {.id = "onednn.mlp.linear.panels_bf16",
     .operation = "mlp.linear.panels",
     .dtypes = Mask(DType::kBF16),
     .constraints = kBF16Constraints,
     .accepts = kAcceptsAll,
     .priority = kLibraryPriority,
     .launch = &Launch,
     .workspace = &Workspace,
     .open = &onednn::OpenFor<onednn::kBF16, /*panels=*/true>},
});
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
