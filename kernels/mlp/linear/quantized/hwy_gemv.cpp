// Linear with weights in any quantized format for one to four rows, CPU SIMD: every weight is decoded once, and read
// from memory once; E4M3 is read once more from the L1 cache, to find NaN.
//   input  [..., k]  f32|f16|bf16, last dim dense, at most 4 rows      weight [n, k / (1 or 2)]  last dim dense
//   packed [n, k / 2] u8, optional, as mlp.linear.prepack orders it, read instead of weight
//   weight_scale, zero_point, tensor_scale: as in the contract, groups of a multiple of 16 values
//   bias   [n]        dtype of input, optional            output [..., n]
// Workspace: the input as f32 if it has another dtype. Deterministic. Source: own. FP32 weights and sums, one partial
// sum per lane, and several for few rows.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/mlp/linear/quantized/hwy_gemv.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include <cmath>

#include "core/kernel.h"
#include "hwy/highway.h"
#include "kernels/gemm/hwy_micro_panels.h"
#include "kernels/gemm/quantized/decode.h"
#include "kernels/gemm/quantized/exact_sums.h"
#include "kernels/spec.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE {
namespace {
using namespace lz::ops;
using namespace lz::ops::mlp_linear_quantized;
using quantized::kUnit;
using quantized::RowScales;
using quantized::Storage;

constexpr int64_t kMaxRows = 4;
constexpr int64_t kUnits = 4;         // units processed at a time, each with its own sums if registers allow
constexpr int64_t kBlockUnits = 256;  // units whose scales are converted at a time
using Tag = hn::CappedTag<float, kUnit>;
using Vector = hn::Vec<Tag>;

constexpr bool IsHalfByte(Storage storage) {
  return storage == Storage::kNibbles || storage == Storage::kPackedNibbles;
}

// The next values of a unit. E4M3 becomes 2^8 too small, as bits of f16 with another bias, and its NaN 480 in that
// scale: its scales are 2^8 larger.
template <Storage kStorage>
HWY_INLINE Vector ValuesOf(const uint8_t* from) {
  const Tag tag;
  const hn::Rebind<uint8_t, Tag> d8;
  const hn::Rebind<int32_t, Tag> d32;
  if constexpr (kStorage == Storage::kE4M3 || kStorage == Storage::kE5M2) {
    const hn::Rebind<int16_t, Tag> d16;
    auto bits = hn::ShiftLeft<8>(hn::PromoteTo(d16, hn::LoadU(d8, from)));
    if constexpr (kStorage == Storage::kE4M3) bits = hn::And(hn::ShiftRight<1>(bits), hn::Set(d16, int16_t(0xbfff)));
    return PromoteF16(tag, hn::BitCast(hn::RebindToUnsigned<decltype(d16)>(), bits));
  } else if constexpr (kStorage == Storage::kBytes) {
    return hn::ConvertTo(tag, hn::PromoteTo(d32, hn::LoadU(d8, from)));
  } else {
    const hn::RebindToSigned<decltype(d8)> s8;
    return hn::ConvertTo(tag, hn::PromoteTo(d32, hn::LoadU(s8, reinterpret_cast<const int8_t*>(from))));
  }
}

// True if some E4M3 value is NaN.
inline bool HasNaN(const uint8_t* weights, int64_t size) {
  const hn::ScalableTag<uint8_t> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  const auto nan = hn::Set(d, 0x7f);
  auto largest = hn::Zero(d);
  int64_t i = 0;
  for (; i + lanes <= size; i += lanes) largest = hn::Max(largest, hn::And(hn::LoadU(d, weights + i), nan));
  bool found = !hn::AllFalse(d, hn::Eq(largest, nan));
  for (; i < size; ++i) found |= (weights[i] & 0x7f) == 0x7f;
  return found;
}

enum class Scaling : uint8_t { kRow, kUnits, kUnitsAndZeros };  // one scale; one per unit; with zero points

// sums[r] = sum over i of x[r][i] w[i], i < k, a multiple of kUnit.
template <Storage kStorage, Scaling kScaling, int R>
void DotRow(const uint8_t* weights, const int8_t* values, const RowScales& scales, const float* const* x, int64_t k,
            float* sums) {
  constexpr int kParts = R == 1 ? 4 : R == 2 ? 2 : 1;
  constexpr int64_t kBytes = IsHalfByte(kStorage) ? kUnit / 2 : kUnit;  // bytes of a unit
  const Tag tag;
  const int64_t lanes = int64_t(hn::Lanes(tag));
  Vector total[kParts * R];
  for (Vector& part : total) part = hn::Zero(tag);
  const auto row_scale = hn::Set(tag, kScaling == Scaling::kRow && k > 0 ? scales.Scale(0) : 0.0f);
  float scale[kBlockUnits], zero[kBlockUnits];
  uint8_t expanded[kUnits * kUnit];

  const auto add = [&](int part, const uint8_t* from, int64_t at, int64_t in_block) HWY_ATTR {
    auto s = row_scale;
    if constexpr (kScaling != Scaling::kRow) s = hn::Set(tag, scale[in_block]);
    for (int64_t i = 0; i < kUnit; i += lanes) {
      auto w = ValuesOf<kStorage>(from + i);
      if constexpr (kScaling == Scaling::kUnitsAndZeros) w = hn::Sub(w, hn::Set(tag, zero[in_block]));
      w = hn::Mul(w, s);
      for (int r = 0; r < R; ++r)
        total[part * R + r] = hn::MulAdd(w, hn::LoadU(tag, x[r] + at + i), total[part * R + r]);
    }
  };
  const auto bytes_of = [&](const uint8_t* at, int64_t units) HWY_ATTR {
    if constexpr (!IsHalfByte(kStorage)) return at;
    for (int64_t u = 0; u < units; u += 2) {
      uint8_t rest[2 * kBytes];
      if (u + 1 == units) at = static_cast<const uint8_t*>(std::memcpy(rest, at, kBytes));
      quantized::ExpandNibbles<kStorage>(at, values, reinterpret_cast<int8_t*>(expanded) + u * kUnit);
      at += 2 * kBytes;
    }
    return static_cast<const uint8_t*>(expanded);
  };

  for (int64_t from = 0, units = k / kUnit; from < units; from += kBlockUnits) {
    const int64_t count = std::min(kBlockUnits, units - from);
    if constexpr (kScaling != Scaling::kRow) scales.ScalesOfUnits(from, count, scale);
    if constexpr (kScaling == Scaling::kUnitsAndZeros) scales.ZerosOfUnits(from, count, zero);
    int64_t u = 0;
    for (; u + kUnits <= count; u += kUnits) {
      const uint8_t* at = bytes_of(weights + (from + u) * kBytes, kUnits);
      for (int j = 0; j < kUnits; ++j) add(j % kParts, at + j * kUnit, (from + u + j) * kUnit, u + j);
    }
    const uint8_t* at = bytes_of(weights + (from + u) * kBytes, count - u);
    for (; u < count; ++u, at += kUnit) add(0, at, (from + u) * kUnit, u);
  }
  for (int r = 0; r < R; ++r) {
    for (int part = 1; part < kParts; ++part) total[r] = hn::Add(total[r], total[part * R + r]);
    sums[r] = hn::GetLane(hn::SumOfLanes(tag, total[r]));
  }
  if constexpr (kStorage == Storage::kE4M3) {
    if (!HasNaN(weights, k)) return;
    for (int r = 0; r < R; ++r) sums[r] = std::numeric_limits<float>::quiet_NaN();
  }
}

using Dot = decltype(&DotRow<Storage::kBytes, Scaling::kRow, 1>);

template <Storage kStorage, Scaling kScaling>
Dot DotOfRows(int64_t rows) {
  switch (rows) {
    case 1: return &DotRow<kStorage, kScaling, 1>;
    case 2: return &DotRow<kStorage, kScaling, 2>;
    case 3: return &DotRow<kStorage, kScaling, 3>;
    default: return &DotRow<kStorage, kScaling, 4>;
  }
}
template <Storage kStorage>
Dot DotOf(int64_t rows, Scaling scaling) {
  if (scaling == Scaling::kRow) return DotOfRows<kStorage, Scaling::kRow>(rows);
  if constexpr (kStorage != Storage::kE4M3 && kStorage != Storage::kE5M2) {  // those have no zero points
    if (scaling == Scaling::kUnitsAndZeros) return DotOfRows<kStorage, Scaling::kUnitsAndZeros>(rows);
  }
  return DotOfRows<kStorage, Scaling::kUnits>(rows);
}
Dot DotOf(Storage storage, int64_t rows, Scaling scaling) {
  switch (storage) {
    case Storage::kSignedBytes: return DotOf<Storage::kSignedBytes>(rows, scaling);
    case Storage::kBytes: return DotOf<Storage::kBytes>(rows, scaling);
    case Storage::kNibbles: return DotOf<Storage::kNibbles>(rows, scaling);
    case Storage::kPackedNibbles: return DotOf<Storage::kPackedNibbles>(rows, scaling);
    case Storage::kE4M3: return DotOf<Storage::kE4M3>(rows, scaling);
    default: return DotOf<Storage::kE5M2>(rows, scaling);
  }
}

template <class T>
int32_t Run(const lz_kernel_args* args) {
  const lz_tensor &input = args->tensors[kInput], &output = args->tensors[kOutput], &bias = args->tensors[kBias];
  const lz_tensor& scale = args->tensors[kWeightScale];
  const int64_t rows = NumRows(output), n = args->tensors[kWeight].shape[0], k = input.shape[input.ndim - 1];
  if (rows > kMaxRows) return 1;
  if (rows == 0) return 0;
  const float* x[kMaxRows];
  T* out[kMaxRows];
  for (int64_t r = 0; r < rows; ++r) {
    const T* row = Data<const T>(input) + RowOffset(input, r);
    out[r] = Data<T>(output) + RowOffset(output, r);
    if constexpr (std::is_same_v<T, float>) {
      x[r] = row;
    } else {
      float* wide = static_cast<float*>(args->workspace) + r * k;
      micro_panels::Widen(row, k, wide);
      x[r] = wide;
    }
  }
  const quantized::Weights weights(args);
  const Scaling scaling = Given(args->tensors[kZeroPoint]) ? Scaling::kUnitsAndZeros
                          : scale.shape[1] == 1            ? Scaling::kRow
                                                           : Scaling::kUnits;
  const Dot dot = DotOf(weights.storage(), rows, scaling);
  const bool e4m3 = weights.storage() == Storage::kE4M3;
  const lz::quantized::ExactSums exact(args);
  // 64k weights take about 5 us on one core: less does not pay for waking another thread.
  ParallelFor(args, n, 65536 / (k + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t column = begin; column < end; ++column) {
      float sums[kMaxRows];
      RowScales scales(args, column);
      if (e4m3) scales.factor *= 256;
      dot(weights.Row(column), weights.values(), scales, x, k, sums);
      const float add = Given(bias) ? ToFloat(Data<const T>(bias)[column * bias.strides[0]]) : 0.0f;
      for (int64_t r = 0; r < rows; ++r) {
        if (!std::isfinite(sums[r]))
          sums[r] = float(exact.At(r, column, sums[r]));  // a partial sum may exceed the
                                                          // range of FP32
        FromFloat(sums[r] + add, out[r] + column);
      }
    }
  });
  return 0;
}

uint64_t Workspace(const lz_kernel_args* args) {
  const lz_tensor& input = args->tensors[kInput];
  if (DTypeOf(input) == DType::kF32) return 0;
  return uint64_t(NumRows(input)) * uint64_t(input.shape[input.ndim - 1]) * sizeof(float);
}

int32_t Launch(const lz_kernel_args* args) {
  if (args->workspace_bytes < Workspace(args)) return 1;
  return WithFloatType(DTypeOf(args->tensors[kInput]), [args](auto t) { return Run<decltype(t)>(args); });
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
    {"rows", Rel::kLe, 4},
    {"group", Rel::kMultipleOf, 16, {}, ReasonCode::kQuantGranularity},
});
constexpr std::array kFamily = {CpuSpec("hwy.mlp.linear.quantized.gemv", &LaunchBest,
                                        {.operation = "mlp.linear.quantized",
                                         .constraints = kConstraints,
                                         .accepts = kAcceptsAll,
                                         .workspace = &WorkspaceBest})};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
#endif  // HWY_ONCE
