// Linear with weights in panels of 64 columns by oneDNN's matmul (onednn.h), which knows this order as BA16a64b.
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

// Whether matmul takes this order for what it is: one panel of weights whose value is its place.
bool ReadsPanels() {
  constexpr int64_t kRow = 17;
  std::array<float, kDepth> x{};
  std::array<float, kDepth * kPanel> panel;
  std::array<float, kPanel> out;
  x[kRow] = 1;
  for (size_t i = 0; i < panel.size(); ++i) panel[i] = float(i);
  const onednn::Shape shape = {
      .type = onednn::kF32, .rows = 1, .columns = kPanel, .k = kDepth, .bias = false, .panels = true};
  if (!onednn::Multiply(shape, {x.data(), panel.data(), nullptr, out.data()})) return false;
  for (int64_t column = 0; column < kPanel; ++column) {
    if (out[size_t(column)] != float(kRow * kPanel + column)) return false;
  }
  return true;
}

const char* Open(const char* path) {
  if (const char* why = onednn::Open(path)) return why;
  static const bool reads = ReadsPanels();
  return reads ? nullptr : "its matmul does not read panels on this CPU";
}

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
     .open = &Open},
    {.id = "onednn.mlp.linear.panels_bf16",
     .operation = "mlp.linear.panels",
     .dtypes = Mask(DType::kBF16),
     .constraints = kBF16Constraints,
     .accepts = kAcceptsAll,
     .priority = kLibraryPriority,
     .launch = &Launch,
     .workspace = &Workspace,
     .open = &Open},
});
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
