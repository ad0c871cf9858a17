// Linear with weights in any quantized format for any number of rows, CPU SIMD: weights become f32 a block at a time,
// each once for up to 192 rows of input.
//   input  [..., k]  f32|f16|bf16, last dim dense      weight [n, k / (1 or 2)]  last dim dense, any format
//   packed [n, k / 2] u8, optional, as mlp.linear.prepack orders it, read instead of weight
//   weight_scale, zero_point, tensor_scale: as in the contract
//   bias   [n]       dtype of input, optional            output [..., n]
// Workspace: at most 192 rows of input as f32. Deterministic. Source: own. FP32 weights and sums; a sum that exceeds
// the range of FP32 is computed again as in the definition.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/mlp/linear/quantized/hwy_gemm.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include <cmath>

#include "hwy/highway.h"
#include "kernels/gemm/blocking.h"
#include "kernels/gemm/hwy_micro_panels.h"
#include "kernels/gemm/hwy_tile.h"
#include "kernels/gemm/quantized/decode.h"
#include "kernels/gemm/quantized/exact_sums.h"
#include "kernels/spec.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE {
namespace {
using namespace lz::ops;
using namespace lz::ops::mlp_linear_quantized;

using Float = Tile<float>;
constexpr int64_t kSmallM = Float::kMaxRows;  // rows of one register tile: lanes of micro-panels would be empty

// At most kSmallM rows, which are f32 in the workspace: sums along k, weights decoded four columns at a time.
template <class T>
void RunSmallM(const lz_kernel_args* args, const quantized::Weights& weights) {
  constexpr int64_t kDepth = micro_panels::kBlockK;
  const lz_tensor &input = args->tensors[kInput], &output = args->tensors[kOutput], &bias = args->tensors[kBias];
  const int64_t n = args->tensors[kWeight].shape[0], k = input.shape[input.ndim - 1], rows = NumRows(output);
  float* x = static_cast<float*>(args->workspace);
  for (int64_t m = 0; m < rows; ++m) micro_panels::Widen(Data<const T>(input) + RowOffset(input, m), k, x + m * k);
  const int64_t tiles = (n + Float::kColumns - 1) / Float::kColumns;
  ParallelFor(args, tiles, micro_panels::kGrain / (Float::kColumns * (k + 16)) + 1, [&](int64_t begin, int64_t end) {
    HWY_ALIGN float panel[Float::kColumns][kDepth];
    float sums[kSmallM * gemm::kBlockColumns];
    for (int64_t first = begin * Float::kColumns; first < std::min(end * Float::kColumns, n);
         first += Float::kColumns) {
      const int64_t columns = std::min<int64_t>(Float::kColumns, n - first);
      for (int64_t from = 0; from < k || from == 0; from += kDepth) {
        const int64_t size = std::min(kDepth, k - from);
        const float *ws[Float::kColumns], *xs[kSmallM];
        for (int64_t c = 0; c < Float::kColumns; ++c) ws[c] = panel[std::min(c, columns - 1)];
        for (int64_t c = 0; c < columns; ++c) weights.Decode(first + c, from, size, panel[c]);
        for (int64_t m = 0; m < rows; ++m) xs[m] = x + m * k + from;
        gemm::RunTile<Float>(int(rows), xs, ws, size, 0, from > 0, sums);
      }
      for (int64_t m = 0; m < rows; ++m) {
        const T* add = Given(bias) ? Data<const T>(bias) + first : nullptr;
        Tile<T>::Store(sums + m * gemm::kBlockColumns, add, columns, Data<T>(output) + RowOffset(output, m) + first);
      }
    }
  });
}

template <class T>
bool AllFinite(const T* x, int64_t size) {
  using Bits = hwy::UnsignedFromSize<sizeof(T)>;
  const hn::ScalableTag<Bits> d;
  const Bits infinite = sizeof(T) == 4 ? Bits(0x7f800000) : std::is_same_v<T, F16> ? Bits(0x7c00) : Bits(0x7f80);
  const auto* bits = reinterpret_cast<const Bits*>(x);
  const auto mask = hn::Set(d, infinite);
  auto largest = hn::Zero(d);
  int64_t i = 0;
  for (; i + int64_t(hn::Lanes(d)) <= size; i += int64_t(hn::Lanes(d)))
    largest = hn::Max(largest, hn::And(hn::LoadU(d, bits + i), mask));
  bool finite = hn::AllFalse(d, hn::Eq(largest, mask));
  for (; i < size; ++i) finite &= (bits[i] & infinite) != infinite;
  return finite;
}

// Outputs that are not finite are computed again as in the definition: a partial sum may have exceeded the range
// of FP32.
template <class T>
void RecomputeNonFinite(const lz_kernel_args* args) {
  const lz_tensor &output = args->tensors[kOutput], &bias = args->tensors[kBias];
  const int64_t n = output.shape[output.ndim - 1];
  // 64k values take about 2 us on one core.
  ParallelFor(args, NumRows(output), 65536 / (n + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      T* out = Data<T>(output) + RowOffset(output, row);
      if (AllFinite(out, n)) continue;
      const lz::quantized::ExactSums exact(args);
      for (int64_t column = 0; column < n; ++column) {
        if (std::isfinite(ToFloat(out[column]))) continue;
        const float add = Given(bias) ? ToFloat(Data<const T>(bias)[column * bias.strides[0]]) : 0.0f;
        if (std::isnan(add) || ToFloat(out[column]) == add) continue;  // only the bias is not finite
        FromFloat(float(exact.At(row, column, ToFloat(out[column])) + double(add)), out + column);
      }
    }
  });
}

uint64_t Workspace(const lz_kernel_args* args) {
  const lz_tensor& input = args->tensors[kInput];
  return micro_panels::PackedBytes(NumRows(input), input.shape[input.ndim - 1]);
}

int32_t Launch(const lz_kernel_args* args) {
  if (args->workspace_bytes < Workspace(args)) return 1;
  const lz_tensor& input = args->tensors[kInput];
  if (NumRows(input) == 0) return 0;
  const quantized::Weights weights(args);
  WithFloatType(DTypeOf(input), [&](auto type) {
    using T = decltype(type);
    if (NumRows(input) <= kSmallM) {
      RunSmallM<T>(args, weights);
    } else {
      micro_panels::Run<T>(args, input, weights, args->tensors[kBias], args->tensors[kOutput]);
    }
    RecomputeNonFinite<T>(args);
  });
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

// hwy.mlp.linear.quantized.gemv comes first for few rows.
constexpr std::array kFamily = {CpuSpec(
    "hwy.mlp.linear.quantized.gemm", &LaunchBest,
    {.operation = "mlp.linear.quantized", .accepts = kAcceptsAll, .priority = 60, .workspace = &WorkspaceBest})};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
#endif  // HWY_ONCE
