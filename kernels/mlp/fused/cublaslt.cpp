// A feed-forward block without a gate by two products of cuBLASLt (kernels/gemm/cublaslt.h): the first one's epilogue
// adds the bias and activates.
//   input [..., d] bf16 contiguous gate_weight [n, d] down_weight [m, n] gate_bias [n], down_bias [m], optional
//   output [..., m], all bf16; activation relu or gelu_tanh
// Workspace: the hidden rows in bf16, and the algorithms'. Source: cuBLASLt.
#include <algorithm>

#include "kernels/gemm/cublaslt.h"
#include "ops/mlp/fused.h"

namespace lz {
namespace {
using namespace lz::ops::mlp_fused;

constexpr int64_t kBytes = 2;  // of a bf16

struct Block {
  explicit Block(const lz_kernel_args* args) {
    const lz_tensor* t = args->tensors;
    const int64_t n = t[kDownWeight].shape[1], d = t[kGateWeight].shape[1], m = t[kDownWeight].shape[0];
    const bool relu = args->scalars[kActivation].value.i == ops::activation::kRelu;
    rows = NumRows(t[kOutput]);
    up = Of(t[kInput].device.id, n, d, relu ? cublaslt::kRelu : cublaslt::kGeluTanh, t[kGateBias]);
    down = Of(t[kInput].device.id, m, n, 0, t[kDownBias]);
    const uint64_t bytes = uint64_t(rows * n * kBytes);
    hidden_bytes = (bytes + 2 * cublaslt::kWorkspaceAlignment - 1) & ~(cublaslt::kWorkspaceAlignment - 1);
  }
  cublaslt::Product Of(int64_t device, int64_t columns, int64_t k, int64_t activation, const lz_tensor& bias) const {
    return {.device = device,
            .type = cublaslt::kBF16,
            .output_type = cublaslt::kBF16,
            .rows = rows,
            .n = columns,
            .k = k,
            .input_ld = k,
            .weight_ld = k,
            .output_ld = columns,
            .activation = activation,
            .bias = Given(bias)};
  }

  int64_t rows = 0;
  cublaslt::Product up, down;
  uint64_t hidden_bytes = 0;  // with those that align the rows
};

uint64_t Workspace(const lz_kernel_args* args) {
  const Block block(args);
  if (block.rows == 0 || block.down.n == 0) return 0;
  return block.hidden_bytes + std::max(cublaslt::WorkspaceOf(block.up, 0), cublaslt::WorkspaceOf(block.down, 0));
}

const char* BiasOf(const lz_tensor& bias) { return Given(bias) ? Data<const char>(bias) : nullptr; }

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor* t = args->tensors;
  const Block block(args);
  if (block.rows == 0 || block.down.n == 0) return LZ_LAUNCH_DONE;
  if (args->workspace_bytes < block.hidden_bytes) return LZ_LAUNCH_REFUSED;
  const auto from = reinterpret_cast<uintptr_t>(args->workspace) + cublaslt::kWorkspaceAlignment - 1;
  auto* const hidden = reinterpret_cast<char*>(from & ~(cublaslt::kWorkspaceAlignment - 1));  // NOLINT
  const cublaslt::Operands down = {hidden, Data<const char>(t[kDownWeight]), BiasOf(t[kDownBias]),
                                   Data<char>(t[kOutput])};
  if (!cublaslt::Serves(block.down, down)) return LZ_LAUNCH_REFUSED;  // while nothing is written
  const int32_t code = cublaslt::Multiply(
      block.up, {Data<const char>(t[kInput]), Data<const char>(t[kGateWeight]), BiasOf(t[kGateBias]), hidden}, 0, args,
      block.hidden_bytes);
  return code != LZ_LAUNCH_DONE ? code : cublaslt::Multiply(block.down, down, 0, args, block.hidden_bytes);
}

constexpr auto kActivations = std::to_array<int64_t>({ops::activation::kGeluTanh, ops::activation::kRelu});
constexpr auto kConstraints = std::to_array<Constraint>({
    cublaslt::kOnSm,
    {.field = "activation", .rel = Rel::kInSet, .set = kActivations},
    {.field = "g - n", .rel = Rel::kEq, .code = ReasonCode::kShapeUnsupported},  // no gate
    {"d", Rel::kGt, 0},
    {"n", Rel::kGt, 0},
});
// The contract allows the last three no effect in a block without a gate.
constexpr auto kAccepts =
    std::to_array<std::string_view>({"gate_bias", "down_bias", "activation", "alpha", "up_offset", "interleaved"});
constexpr std::array kFamily = {cublaslt::Spec("cublaslt.mlp.fused", "mlp.fused",
                                               {.constraints = kConstraints,
                                                .launch = &Launch,
                                                .workspace = &Workspace,
                                                .dtypes = Mask(DType::kBF16),
                                                .accepts = kAccepts})};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
