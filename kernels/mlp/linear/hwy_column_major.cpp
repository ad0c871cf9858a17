// Linear with column-major weights (GPT-2's), CPU SIMD, for any number of rows.
//   input  [..., k]  f32|bf16|f16, last dim dense     weight [n, k]  dtype of input, first dim dense
//   bias   [n]       dtype of input, optional     output [..., n]
// Workspace: for more than four rows of f16 and bf16, at most 512 of them as f32. Deterministic. Source: own. FP32 sums
// over k in order, in blocks of at most 8 values for up to four rows, of 512 for more.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/mlp/linear/hwy_column_major.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "core/kernel.h"
#include "hwy/highway.h"
#include "kernels/gemm/hwy_column_major.h"
#include "ops/mlp/linear.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE {
namespace {
using namespace lz::ops::mlp_linear;

uint64_t Workspace(const lz_kernel_args* args) {
  const lz_tensor& output = args->tensors[kOutput];
  return WithFloatType(DTypeOf(output), [&](auto type) {
    return uint64_t(
               column_major::GemmFP32::WideSize<decltype(type)>(NumRows(output), args->tensors[kWeight].shape[1])) *
           sizeof(float);
  });
}

template <class T>
void Run(const lz_kernel_args* args) {
  const lz_tensor &input = args->tensors[kInput], &bias = args->tensors[kBias], &output = args->tensors[kOutput];
  const RowOffsets in(input), out(output);
  const column_major::Weight<T> weight(args->tensors[kWeight]);
  const auto x = [&](int64_t row) { return Data<const T>(input) + in[row]; };
  const column_major::Operands<T, decltype(x)> operands = {x, NumRows(output), &weight, 1,
                                                           args->tensors[kWeight].shape[0]};
  column_major::Multiply(args, operands, static_cast<float*>(args->workspace),
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
    {"input.last_dim_stride1", Rel::kEq, 1},
    {"weight.columns_dense", Rel::kEq, 1},
    {"bias.last_dim_stride1", Rel::kEq, 1},
});
constexpr auto kFamily = std::to_array<KernelSpec>({
    {.id = "hwy.mlp.linear.column_major",
     .operation = "mlp.linear",
     .dtypes = kF32F16BF16,
     .constraints = kConstraints,
     .accepts = kAcceptsAll,
     .strides = Strides::kAny,
     .priority = 80,
     .deterministic = true,
     .launch = &LaunchBest,
     .workspace = &WorkspaceBest},
});
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
#endif  // HWY_ONCE
