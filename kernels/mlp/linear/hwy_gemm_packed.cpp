// Linear for many rows, CPU SIMD: weights are packed into panels of columns, one block at a time (panels/blocks.h).
//   input  [..., k]  f32|bf16|f16, last dim dense     weight [n, k]  dtype of input, last dim dense
//   bias   [n]       dtype of input, optional     output [..., n]
// Workspace: for f16 and bf16 at most 512 rows of input as f32. Deterministic. Source: own. FP32 sums over k in order,
// in blocks of at most 512.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/mlp/linear/hwy_gemm_packed.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "core/kernel.h"
#include "hwy/highway.h"
#include "kernels/gemm/hwy_panel_tile.h"
#include "ops/mlp/linear.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE {
namespace {
using namespace lz::ops::mlp_linear;

uint64_t Workspace(const lz_kernel_args* args) {
  const lz_tensor &output = args->tensors[kOutput], &weight = args->tensors[kWeight];
  return WithFloatType(DTypeOf(output), [&](auto type) {
    return uint64_t(panel_tiles::WideSize<decltype(type)>(NumRows(output), weight.shape[1])) * sizeof(float);
  });
}

template <class T>
void Run(const lz_kernel_args* args) {
  const lz_tensor &input = args->tensors[kInput], &weight = args->tensors[kWeight], &bias = args->tensors[kBias];
  const lz_tensor& output = args->tensors[kOutput];
  const RowOffsets in(input), out(output);
  const panels::Weights<T> weights = {Data<const T>(weight), weight.strides[0], /*column_major=*/false};
  panel_tiles::Multiply<1, T>(
      args, {NumRows(output), weight.shape[0], weight.shape[1]},
      [&](int64_t row) { return Data<const T>(input) + in[row]; }, &weights, static_cast<float*>(args->workspace),
      [&](int64_t row, int64_t first, int64_t columns, const float* sums, const float*) {
        panel_tiles::Store(sums, Given(bias) ? Data<const T>(bias) + first : nullptr, columns,
                           Data<T>(output) + out[row] + first);
      });
}

int32_t Launch(const lz_kernel_args* args) {
  if (args->workspace_bytes < Workspace(args)) return 1;
  WithFloatType(DTypeOf(args->tensors[kInput]), [&](auto type) { Run<decltype(type)>(args); });
  return 0;
}

}  // namespace
}  // namespace lz::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lz {
namespace {
LZ_HWY_EXPORT(Launch);
LZ_HWY_EXPORT(Workspace);

constexpr auto kConstraints = std::to_array<Constraint>({
    {"rows", Rel::kGt, 32},  // fewer rows: hwy.mlp.linear.gemm
});
// One kernel with two priorities: for bf16, a CPU with bf16 dot products has a faster
// kernel (x86_avx512bf16_packed.cpp).
constexpr auto kFamily = std::to_array<KernelSpec>({
    {.id = "hwy.mlp.linear.gemm_packed",
     .operation = "mlp.linear",
     .dtypes = Mask(DType::kF32, DType::kF16),
     .constraints = kConstraints,
     .accepts = kAcceptsAll,
     .strides = Strides::kLastDimDense,
     .priority = 61,
     .deterministic = true,
     .launch = &LaunchBest,
     .workspace = &WorkspaceBest},
    {.id = "hwy.mlp.linear.gemm_packed_bf16",
     .operation = "mlp.linear",
     .dtypes = Mask(DType::kBF16),
     .constraints = kConstraints,
     .accepts = kAcceptsAll,
     .strides = Strides::kLastDimDense,
     .priority = 41,
     .deterministic = true,
     .launch = &LaunchBest,
     .workspace = &WorkspaceBest},
});
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
#endif  // HWY_ONCE
