// Linear by oneDNN's matmul (onednn.h).
//   input [..., k] f32|bf16 contiguous weight [n, k] bias [n], optional output [..., n], all with input's dtype
// Workspace: the output of 2 to 64 rows. Source: oneDNN. FP32 sums in its order.
#include "kernels/gemm/onednn_parallel.h"
#include "ops/mlp/linear.h"

namespace lz {
namespace {
using namespace lz::ops::mlp_linear;

onednn::Operands Of(const lz_kernel_args* args) {
  const lz_tensor* t = args->tensors;
  const int64_t* shape = t[kWeight].shape;
  return {t[kInput], t[kWeight], t[kBias], t[kOutput], shape[0], shape[1], /*panels=*/false};
}
uint64_t Workspace(const lz_kernel_args* args) { return onednn::WorkspaceOf(Of(args)); }
int32_t Launch(const lz_kernel_args* args) { return onednn::MultiplyInParts(args, Of(args)); }

constexpr auto kF32Constraints = std::to_array<Constraint>({{"k", Rel::kGt, 0}});
constexpr auto kBF16Constraints = std::to_array<Constraint>({
    {"k", Rel::kGt, 0}, {"device.isa", Rel::kHasBits, kIsaAvx512},  // oneDNN needs it for bf16
});
constexpr std::array kFamily = {
    onednn::Spec<onednn::kF32, /*panels=*/false>("onednn.mlp.linear", "mlp.linear", kF32Constraints, &Launch,
                                                 &Workspace),
    onednn::Spec<onednn::kBF16, /*panels=*/false>("onednn.mlp.linear_bf16", "mlp.linear", kBF16Constraints, &Launch,
                                                  &Workspace),
};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
