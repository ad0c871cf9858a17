// Linear with weights in any quantised format for any number of rows, CPU SIMD: weights become f32 a block at a time,
// each once for up to 192 rows of input.
//   input  [..., k]  f32|f16|bf16, last dim dense      weight [n, k / (1 or 2)]  last dim dense, any format
//   packed [n, k / 2] u8, optional, as mlp.linear.prepack orders it, read instead of weight
//   weight_scale, zero_point, tensor_scale: as the contract has them
//   bias   [n]       dtype of input, optional            output [..., n]
// Workspace: at most 192 rows of input as f32. Deterministic. Source: own. FP32 weights and sums.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/mlp/linear/quantized/hwy_gemm.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "core/kernel.h"
#include "hwy/highway.h"
#include "kernels/mlp/linear/blocks.h"
#include "kernels/mlp/linear/hwy_strips.h"
#include "kernels/mlp/linear/hwy_tile.h"
#include "kernels/mlp/linear/quantized/decode.h"

HWY_BEFORE_NAMESPACE();
namespace lz {
namespace HWY_NAMESPACE {
namespace {
using namespace lz::ops;
using namespace lz::ops::mlp_linear_quantized;

using Float = Tile<float>;
constexpr int64_t kFewRows = Float::kMaxRows;  // of one register tile: lanes of strips would be empty

// At most kFewRows rows, which the workspace holds as f32: sums along k, weights decoded four columns at a time.
template <class T>
void RunFew(const lz_kernel_args* args, const quantized::Weights& weights) {
  constexpr int64_t kDepth = strips::kBlockK;
  const lz_tensor &input = args->tensors[kInput], &output = args->tensors[kOutput], &bias = args->tensors[kBias];
  const int64_t n = args->tensors[kWeight].shape[0], k = input.shape[input.ndim - 1], rows = NumRows(output);
  float* x = static_cast<float*>(args->workspace);
  for (int64_t m = 0; m < rows; ++m) strips::Widen(Data<const T>(input) + RowOffset(input, m), k, x + m * k);
  const int64_t tiles = (n + Float::kColumns - 1) / Float::kColumns;
  ParallelFor(args, tiles, strips::kGrain / (Float::kColumns * (k + 16)) + 1, [&](int64_t begin, int64_t end) {
    HWY_ALIGN float panel[Float::kColumns][kDepth];
    float sums[kFewRows * linear::kBlockColumns];
    for (int64_t first = begin * Float::kColumns; first < std::min(end * Float::kColumns, n);
         first += Float::kColumns) {
      const int64_t columns = std::min<int64_t>(Float::kColumns, n - first);
      for (int64_t from = 0; from < k || from == 0; from += kDepth) {
        const int64_t size = std::min(kDepth, k - from);
        const float *ws[Float::kColumns], *xs[kFewRows];
        for (int64_t c = 0; c < Float::kColumns; ++c) ws[c] = panel[std::min(c, columns - 1)];
        for (int64_t c = 0; c < columns; ++c) weights.Decode(first + c, from, size, panel[c]);
        for (int64_t m = 0; m < rows; ++m) xs[m] = x + m * k + from;
        linear::RunTile<Float>(int(rows), xs, ws, size, 0, from > 0, sums);
      }
      for (int64_t m = 0; m < rows; ++m) {
        const T* add = Given(bias) ? Data<const T>(bias) + first : nullptr;
        Tile<T>::Store(sums + m * linear::kBlockColumns, add, columns, Data<T>(output) + RowOffset(output, m) + first);
      }
    }
  });
}

uint64_t Workspace(const lz_kernel_args* args) {
  const lz_tensor& input = args->tensors[kInput];
  return strips::PackedBytes(NumRows(input), input.shape[input.ndim - 1]);
}

int32_t Launch(const lz_kernel_args* args) {
  if (args->workspace_bytes < Workspace(args)) return 1;
  const lz_tensor& input = args->tensors[kInput];
  if (NumRows(input) == 0) return 0;
  const quantized::Weights weights(args);
  WithFloatType(DTypeOf(input), [&](auto type) {
    if (NumRows(input) <= kFewRows) return RunFew<decltype(type)>(args, weights);
    strips::Run<decltype(type)>(args, input, weights, args->tensors[kBias], args->tensors[kOutput]);
  });
  return 0;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lz
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lz {
namespace {
HWY_EXPORT(Launch);
HWY_EXPORT(Workspace);
int32_t LaunchBest(const lz_kernel_args* args) { return HWY_DYNAMIC_DISPATCH(Launch)(args); }
uint64_t WorkspaceOfBest(const lz_kernel_args* args) { return HWY_DYNAMIC_DISPATCH(Workspace)(args); }

constexpr auto kFamily = std::to_array<KernelSpec>({
    {.id = "hwy.mlp.linear.quantized.gemm",
     .operation = "mlp.linear.quantized",
     .dtypes = kF32F16BF16,
     .accepts = kAcceptsAll,
     .strides = Strides::kLastDimDense,
     .priority = 60,  // gemv serves few rows
     .deterministic = true,
     .launch = &LaunchBest,
     .workspace = &WorkspaceOfBest},
});
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
#endif  // HWY_ONCE
