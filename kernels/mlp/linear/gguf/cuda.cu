// Linear of 1 to 16 rows with weights as stored in a GGUF file on CUDA: every block is read once, decoded in registers,
// multiplied by tensor cores.
//   input [..., k]  f16|bf16, rows dense, at most 16     weight [n, row_bytes]  u8, rows begin at multiples of 16 bytes
//   bias  [n]       dtype of input, optional             output [..., n]
// Workspace: none. Deterministic. Safe in graph captures. Source: own. FP32 sums of exact products.
#include "kernels/mlp/linear/gguf/blocks_cuda.h"
#include "ops/mlp/linear/gguf.h"

namespace lz {
namespace {
using namespace lz::ops::mlp_linear_gguf;

template <class T>
int32_t RunFormat(const lz_kernel_args* args) {
  const lz_tensor* t = args->tensors;
  const few_rows::Call<T> call = few_rows::CallOf<T>(t[kInput], t[kWeight], t[kBias], t[kOutput]);
  return gguf_cuda::WithFormat(args->scalars[kFormat].value.i, [&](auto format) {
    return few_rows::Run<T, gguf_cuda::Blocks<decltype(format)::value>>(call, {}, args->stream);
  });
}

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor* t = args->tensors;
  if (NumRows(t[kInput]) == 0 || t[kWeight].shape[0] == 0) return LZ_LAUNCH_DONE;
  return DTypeOf(t[kInput]) == DType::kBF16 ? RunFormat<__nv_bfloat16>(args) : RunFormat<__half>(args);
}

constexpr auto kConstraints = std::to_array<Constraint>({
    kOnCompiledSm,
    kOnDriver,
    {"rows", Rel::kLe, few_rows::kMostRows},
    {"k", Rel::kGe, 32},
    {"activations", Rel::kEq, kAsGiven},
    {"input.alignment", Rel::kGe, 3},
    {"weight.alignment", Rel::kGe, 4},
});
constexpr std::array<std::string_view, 2> kAccepts = {"bias", "activations"};
constexpr auto kFamily = std::to_array<KernelSpec>({
    {.id = "cuda.mlp.linear.gguf",
     .operation = "mlp.linear.gguf",
     .platform = Platform::kCuda,
     .dtypes = Mask(DType::kF16, DType::kBF16),
     .constraints = kConstraints,
     .accepts = kAccepts,
     .strides = Strides::kLastDimDense,
     .priority = 80,
     .deterministic = true,
     .cuda_graph_safe = true,
     .launch = &Launch},
});
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
