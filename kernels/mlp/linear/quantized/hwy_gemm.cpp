// Linear with weights in any quantised format for any number of rows, CPU SIMD: weights become f32 a few columns at a
// time, which stay in the first-level cache while the register tile of mlp.linear runs over the rows.
//   input  [..., k]  f32|f16|bf16, last dim dense      weight [n, k / (1 or 2)]  last dim dense, any format
//   packed [n, k / 2] u8, optional, as mlp.linear.prepack orders it, read instead of weight
//   weight_scale, zero_point, tensor_scale: as the contract has them
//   bias   [n]       dtype of input, optional            output [..., n]
// Workspace: the input as f32, unless it is. Deterministic. Source: own. FP32 weights and sums.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/mlp/linear/quantized/hwy_gemm.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "core/kernel.h"
#include "hwy/highway.h"
#include "kernels/mlp/linear/blocks.h"
#include "kernels/mlp/linear/hwy_tile.h"
#include "kernels/mlp/linear/quantized/decode.h"

HWY_BEFORE_NAMESPACE();
namespace lz {
namespace HWY_NAMESPACE {
namespace {
using namespace lz::ops;
using namespace lz::ops::mlp_linear_quantized;
using linear::kBlockColumns;
using Float = Tile<float>;

constexpr int64_t kRows = 96;     // of input for each time that weights are decoded: 384 KiB of a second-level cache
constexpr int64_t kDepth = 1024;  // of a row of weights at a time: linear::BlockK never gives more for f32

// sums[m][kBlockColumns] of `columns` output columns from `first` on; x: `rows` <= kRows rows of k values.
void SumColumns(const quantized::Weights& weights, const float* const* x, int rows, int64_t k, int64_t first,
                int64_t columns, float* sums) {
  HWY_ALIGN float panel[Float::kColumns][kDepth];
  const int64_t block = linear::BlockK(k, sizeof(float));
  const int groups = (rows + Float::kMaxRows - 1) / Float::kMaxRows;
  for (int64_t from = 0; from < k || from == 0; from += block) {
    const int64_t size = std::min(block, k - from);
    for (int64_t column = 0; column < columns; column += Float::kColumns) {
      const float* ws[Float::kColumns];  // the last tile may be narrower: it repeats its last column
      for (int64_t c = 0; c < Float::kColumns; ++c) {
        const int64_t own = std::min(c, columns - 1 - column);
        if (own == c) weights.Decode(first + column + c, from, size, panel[c]);
        ws[c] = panel[own];
      }
      for (int group = 0; group < groups; ++group) {  // of nearly equal numbers of rows
        const int begin = rows * group / groups, end = rows * (group + 1) / groups;
        const float* xs[Float::kMaxRows];
        for (int m = begin; m < end; ++m) xs[m - begin] = x[m] + from;
        linear::RunTile<Float>(end - begin, xs, ws, size, 0, from > 0, sums + begin * kBlockColumns + column);
      }
    }
  }
}

template <class T>
void Widen(const T* x, int64_t k, float* out) {
  const hn::ScalableTag<float> d;
  int64_t i = 0;
  for (; i + int64_t(hn::Lanes(d)) <= k; i += int64_t(hn::Lanes(d))) hn::StoreU(LoadF32(d, x + i), d, out + i);
  for (; i < k; ++i) out[i] = ToFloat(x[i]);
}

template <class T>
int32_t Run(const lz_kernel_args* args) {
  constexpr bool kWidens = !std::is_same_v<T, float>;
  const lz_tensor &input = args->tensors[kInput], &output = args->tensors[kOutput], &bias = args->tensors[kBias];
  const int64_t rows = NumRows(output), n = args->tensors[kWeight].shape[0], k = input.shape[input.ndim - 1];
  const RowOffsets in(input), out(output);
  float* widened = static_cast<float*>(args->workspace);
  if constexpr (kWidens) {
    if (args->workspace_bytes < uint64_t(rows * k) * sizeof(float)) return 1;
    ParallelFor(args, rows, 65536 / (k + 1) + 1, [&](int64_t begin, int64_t end) {
      for (int64_t m = begin; m < end; ++m) Widen(Data<const T>(input) + in[m], k, widened + m * k);
    });
  }
  const auto row = [&](int64_t m) -> const float* {
    if constexpr (kWidens) return widened + m * k;
    return Data<const float>(input) + in[m];
  };
  const quantized::Weights weights(args);
  const int64_t work = kBlockColumns * (k + 16) * std::max<int64_t>(1, rows / 2);
  ParallelFor(args, (n + kBlockColumns - 1) / kBlockColumns, 16384 / work + 1, [&](int64_t begin, int64_t end) {
    float sums[kRows * kBlockColumns];
    const float* x[kRows];
    for (int64_t first = begin * kBlockColumns; first < std::min(end * kBlockColumns, n); first += kBlockColumns) {
      const int64_t columns = std::min(kBlockColumns, n - first);
      const T* add = Given(bias) ? Data<const T>(bias) + first : nullptr;
      for (int64_t m0 = 0; m0 < rows; m0 += kRows) {
        const int count = int(std::min(kRows, rows - m0));
        for (int m = 0; m < count; ++m) x[m] = row(m0 + m);
        SumColumns(weights, x, count, k, first, columns, sums);
        for (int m = 0; m < count; ++m) {
          Tile<T>::Store(sums + m * kBlockColumns, add, columns, Data<T>(output) + out[m0 + m] + first);
        }
      }
    }
  });
  return 0;
}

int32_t Launch(const lz_kernel_args* args) {
  return WithFloatType(DTypeOf(args->tensors[kInput]), [args](auto t) { return Run<decltype(t)>(args); });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lz
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lz {
namespace {
HWY_EXPORT(Launch);
int32_t LaunchBest(const lz_kernel_args* args) { return HWY_DYNAMIC_DISPATCH(Launch)(args); }

uint64_t Workspace(const lz_kernel_args* args) {
  const lz_tensor& input = args->tensors[ops::mlp_linear_quantized::kInput];
  if (DTypeOf(input) == DType::kF32) return 0;
  return uint64_t(NumRows(input) * input.shape[input.ndim - 1]) * sizeof(float);
}

constexpr auto kFamily = std::to_array<KernelSpec>({
    {.id = "hwy.mlp.linear.quantized.gemm",
     .operation = "mlp.linear.quantized",
     .dtypes = kF32F16BF16,
     .accepts = kAcceptsAll,
     .strides = Strides::kLastDimDense,
     .priority = 60,  // gemv_int8 and gemv_packed4 serve few rows
     .deterministic = true,
     .launch = &LaunchBest,
     .workspace = &Workspace},
});
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
#endif  // HWY_ONCE
