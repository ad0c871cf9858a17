// Linear of 1 to 16 rows with weights as stored in a GGUF file on CUDA: every block is read once, decoded in registers,
// multiplied by tensor cores.
//   input [..., k]  f16|bf16, rows dense, at most 16     weight [n, row_bytes]  u8, rows begin at multiples of 16 bytes
//   bias  [n]       dtype of input, optional             output [..., n]
// Workspace: none. Deterministic. Safe in graph captures. Source: own. FP32 sums of exact products.
#include "kernels/gemm/few_rows_spec_cuda.h"
#include "kernels/gemm/gguf/blocks_cuda.h"
#include "ops/mlp/linear/gguf.h"

namespace lz {
namespace {
using namespace lz::ops::mlp_linear_gguf;

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor* t = args->tensors;
  return few_rows::Launch(t[kInput], t[kWeight], t[kBias], t[kOutput], [&]<class T>(const few_rows::Call<T>& call) {
    return gguf_cuda::WithFormat(args->scalars[kFormat].value.i, [&](auto format) {
      return few_rows::Run<T, gguf_cuda::Blocks<decltype(format)::value>>(call, {}, args->stream);
    });
  });
}

constexpr auto kConstraints = few_rows::WithCalls({
    {"k", Rel::kGe, 32},
    {"activations", Rel::kEq, kAsGiven},
    {"input.alignment", Rel::kGe, 3},
});
constexpr std::array<std::string_view, 2> kAccepts = {"bias", "activations"};
constexpr std::array kFamily = {CudaSpec(
    "cuda.mlp.linear.gguf", &Launch, {.dtypes = few_rows::kInputs, .constraints = kConstraints, .accepts = kAccepts})};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
