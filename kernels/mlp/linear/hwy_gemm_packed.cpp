// Linear over panels of columns, CPU SIMD, into which weights are packed one block at a time (gemm/panel_blocking.h):
// for many rows and row-major weights, and for any number of rows and column-major weights (GPT-2's).
//   input  [..., k]  f32|bf16|f16, last dim dense     weight [n, k]  dtype of input, last or first dim dense
//   bias   [n]       dtype of input, optional     output [..., n]
// Workspace: for f16 and bf16 at most 512 rows of input as f32. Deterministic. Source: own. FP32 sums over k in order,
// in blocks of at most 512; with column-major weights and up to four rows, which are not packed, of at most 8 values.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/mlp/linear/hwy_gemm_packed.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "hwy/highway.h"
#include "kernels/gemm/hwy_column_major.h"
#include "kernels/spec.h"
#include "ops/mlp/linear.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE {
namespace {
using namespace lz::ops::mlp_linear;

template <bool kColumnMajor>
uint64_t WorkspaceOf(const lz_kernel_args* args) {
  const int64_t rows = NumRows(args->tensors[kOutput]), k = args->tensors[kWeight].shape[1];
  return WithFloatType(DTypeOf(args->tensors[kOutput]), [&](auto type) {
    using T = decltype(type);
    return uint64_t(kColumnMajor ? column_major::GemmFP32::WideSize<T>(rows, k) : panel_tiles::WideSize<T>(rows, k)) *
           sizeof(float);
  });
}

template <bool kColumnMajor, class T>
void Run(const lz_kernel_args* args) {
  const lz_tensor &input = args->tensors[kInput], &weight = args->tensors[kWeight], &bias = args->tensors[kBias];
  const lz_tensor& output = args->tensors[kOutput];
  const RowOffsets in(input), out(output);
  float* wide = static_cast<float*>(args->workspace);
  const auto x = [&](int64_t row) { return Data<const T>(input) + in[row]; };
  const auto store = [&](int64_t row, int64_t first, int64_t columns, const float* sums, const float*) {
    panel_tiles::Store(sums, Given(bias) ? Data<const T>(bias) + first : nullptr, columns,
                       Data<T>(output) + out[row] + first);
  };
  if constexpr (kColumnMajor) {
    const column_major::Weight<T> weights(weight);
    const column_major::Operands<T, decltype(x)> operands = {x, NumRows(output), &weights, 1, weight.shape[0]};
    column_major::Multiply(args, operands, wide, store);
  } else {
    const panels::Weights<T> weights = {Data<const T>(weight), weight.strides[0], /*column_major=*/false};
    panel_tiles::Multiply<1, T>(args, {NumRows(output), weight.shape[0], weight.shape[1]}, x, &weights, wide, store);
  }
}

template <bool kColumnMajor>
int32_t LaunchOf(const lz_kernel_args* args) {
  if (args->workspace_bytes < WorkspaceOf<kColumnMajor>(args)) return 1;
  WithFloatType(DTypeOf(args->tensors[kInput]), [&](auto type) { Run<kColumnMajor, decltype(type)>(args); });
  return 0;
}

int32_t RowMajor(const lz_kernel_args* args) { return LaunchOf<false>(args); }
int32_t ColumnMajor(const lz_kernel_args* args) { return LaunchOf<true>(args); }
uint64_t RowMajorWorkspace(const lz_kernel_args* args) { return WorkspaceOf<false>(args); }
uint64_t ColumnMajorWorkspace(const lz_kernel_args* args) { return WorkspaceOf<true>(args); }

}  // namespace
}  // namespace lz::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lz {
namespace {
LZ_HWY_EXPORT(RowMajor);
LZ_HWY_EXPORT(ColumnMajor);
LZ_HWY_EXPORT(RowMajorWorkspace);
LZ_HWY_EXPORT(ColumnMajorWorkspace);

// Packing pays with more rows; hwy.mlp.linear.gemm does not pack.
constexpr auto kFewRows = std::to_array<Constraint>({{"rows", Rel::kLe, 32}});
// A CPU with bf16 dot products has a faster kernel (x86_avx512bf16_packed.cpp).
constexpr auto kBF16 = std::to_array<Constraint>({{"dtype", Rel::kEq, int64_t(DType::kBF16)}});
constexpr auto kPreferences =
    std::to_array<Preference>({{.when = kFewRows, .priority = kAfterOthers}, {.when = kBF16, .priority = 41}});
constexpr auto kColumnMajor = std::to_array<Constraint>({
    {"input.last_dim_stride1", Rel::kEq, 1},
    {"weight.columns_dense", Rel::kEq, 1},
    {"bias.last_dim_stride1", Rel::kEq, 1},
});
constexpr std::array kFamily = {
    CpuSpec("hwy.mlp.linear.gemm_packed", &RowMajorBest,
            {.operation = "mlp.linear",
             .accepts = kAcceptsAll,
             .priority = 61,
             .preferences = kPreferences,
             .workspace = &RowMajorWorkspaceBest}),
    CpuSpec("hwy.mlp.linear.column_major", &ColumnMajorBest,
            {.operation = "mlp.linear",
             .constraints = kColumnMajor,
             .accepts = kAcceptsAll,
             .strides = Strides::kAny,
             .workspace = &ColumnMajorWorkspaceBest}),
};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
#endif  // HWY_ONCE
