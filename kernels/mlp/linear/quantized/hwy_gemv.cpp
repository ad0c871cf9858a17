// Linear with int8 or packed 4-bit weights for one to four rows, CPU SIMD: every weight is read and decoded once.
//   input  [..., k]   f32|f16|bf16, last dim dense, at most 4 rows      weight [n, k] i8, last dim dense
//   packed [n, k / 2] u8, last dim dense, as mlp.linear.prepack orders it, of int4, uint4, mxfp4 or nvfp4
//   weight_scale, zero_point, tensor_scale: as the contract has them, groups of a multiple of 16 values
//   bias   [n]        dtype of input, optional                          output [..., n]
// Workspace: none. Deterministic. Source: own. FP32 sums in one part for each lane, scales applied to sums of 16
// values.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/mlp/linear/quantized/hwy_gemv.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "core/kernel.h"
#include "hwy/highway.h"
#include "kernels/mlp/linear/quantized/decode.h"

HWY_BEFORE_NAMESPACE();
namespace lz {
namespace HWY_NAMESPACE {
namespace {
using namespace lz::ops;
using namespace lz::ops::mlp_linear_quantized;
using quantized::RowScales;

constexpr int64_t kMaxRows = 4;
constexpr int64_t kUnit = 16;  // values under one scale that are summed before it is applied
using Tag = hn::CappedTag<float, 16>;
using Vector = hn::Vec<Tag>;

// total[r] += scale * sum of 16 codes times inputs.
template <int R, class T>
HWY_INLINE void AddUnit(const int8_t* codes, const T* const* x, int64_t at, float scale, float zero, Vector* total) {
  const Tag tag;
  const hn::Rebind<int32_t, Tag> di;
  const hn::Rebind<int8_t, Tag> d8;
  const int64_t lanes = int64_t(hn::Lanes(tag));
  const auto z = hn::Set(tag, zero), s = hn::Set(tag, scale);
  for (int64_t i = 0; i < kUnit; i += lanes) {
    const auto code = hn::ConvertTo(tag, hn::PromoteTo(di, hn::LoadU(d8, codes + i)));
    const auto w = hn::Mul(s, hn::Sub(code, z));
    for (int r = 0; r < R; ++r) total[r] = hn::MulAdd(w, LoadF32(tag, x[r] + at + i), total[r]);
  }
}

template <int R, class T>
HWY_INLINE void AddInt8(const int8_t* codes, const T* const* x, int64_t k, const RowScales& scales, Vector* total) {
  const int64_t units = scales.group / kUnit;
  for (int64_t unit = 0; unit < k / kUnit; ++unit) {
    const int64_t group = unit / units;
    AddUnit<R>(codes + unit * kUnit, x, unit * kUnit, scales.Scale(group), scales.Zero(group), total);
  }
}

template <int R, class T>
HWY_INLINE void AddPacked(const uint8_t* packed, const int8_t* table, const T* const* x, int64_t k,
                          const RowScales& scales, Vector* total) {
  const hn::FixedTag<uint8_t, 16> d16;
  const hn::RebindToSigned<decltype(d16)> s16;
  const auto meaning = hn::Load(s16, table);
  const int64_t units = scales.group / kUnit;
  for (int64_t chunk = 0; chunk < k / 32; ++chunk) {
    const auto bytes = hn::LoadU(d16, packed + chunk * 16);
    alignas(16) int8_t codes[32];
    hn::Store(hn::TableLookupBytes(meaning, hn::BitCast(s16, hn::And(bytes, hn::Set(d16, 15)))), s16, codes);
    hn::Store(hn::TableLookupBytes(meaning, hn::BitCast(s16, hn::ShiftRight<4>(bytes))), s16, codes + 16);
    for (int64_t unit = 2 * chunk; unit < 2 * chunk + 2; ++unit) {
      const int64_t group = unit / units;
      AddUnit<R>(codes + unit % 2 * 16, x, unit * kUnit, scales.Scale(group), scales.Zero(group), total);
    }
  }
}

template <int R, class T>
void Columns(const lz_kernel_args* args, int64_t begin, int64_t end) {
  const Tag tag;
  const lz_tensor &input = args->tensors[kInput], &output = args->tensors[kOutput], &bias = args->tensors[kBias];
  const lz_tensor &weight = args->tensors[kWeight], &packed = args->tensors[kPacked];
  const int64_t k = input.shape[input.ndim - 1], format = args->scalars[kFormat].value.i;
  const int8_t* table = quantized::MeaningOf(format);
  const T* x[R];
  T* out[R];
  for (int r = 0; r < R; ++r) {
    x[r] = Data<const T>(input) + RowOffset(input, r);
    out[r] = Data<T>(output) + RowOffset(output, r);
  }
  for (int64_t column = begin; column < end; ++column) {
    const RowScales scales(args, column);
    Vector total[R];
    for (int r = 0; r < R; ++r) total[r] = hn::Zero(tag);
    if (format == kInt8) {
      AddInt8<R>(Data<const int8_t>(weight) + column * weight.strides[0], x, k, scales, total);
    } else {
      AddPacked<R>(Data<const uint8_t>(packed) + column * packed.strides[0], table, x, k, scales, total);
    }
    const float add = Given(bias) ? ToFloat(Data<const T>(bias)[column * bias.strides[0]]) : 0.0f;
    for (int r = 0; r < R; ++r) FromFloat(hn::GetLane(hn::SumOfLanes(tag, total[r])) + add, out[r] + column);
  }
}

template <class T>
int32_t Run(const lz_kernel_args* args) {
  const int64_t rows = NumRows(args->tensors[kOutput]), n = args->tensors[kWeight].shape[0];
  const int64_t k = args->tensors[kInput].shape[args->tensors[kInput].ndim - 1];
  if (rows > kMaxRows) return 1;
  // 64k weights take about 5 us on one core: less is not worth waking another.
  ParallelFor(args, n, 65536 / (k + 1) + 1, [&](int64_t begin, int64_t end) {
    switch (rows) {
      case 0: return;
      case 1: return Columns<1, T>(args, begin, end);
      case 2: return Columns<2, T>(args, begin, end);
      case 3: return Columns<3, T>(args, begin, end);
      default: return Columns<4, T>(args, begin, end);
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

constexpr std::array<int64_t, 4> kPackedFormats = {ops::kInt4, ops::kUInt4, ops::kMXFP4, ops::kNVFP4};
constexpr auto kInt8Constraints = std::to_array<Constraint>({
    {"rows", Rel::kLe, 4},
    {"format", Rel::kEq, ops::kInt8, {}, ReasonCode::kQuantFormatUnsupported},
    {"group", Rel::kMultipleOf, 16, {}, ReasonCode::kQuantGranularity},
});
constexpr auto kPackedConstraints = std::to_array<Constraint>({
    {"rows", Rel::kLe, 4},
    {"format", Rel::kInSet, 0, kPackedFormats, ReasonCode::kQuantFormatUnsupported},
    {"group", Rel::kMultipleOf, 16, {}, ReasonCode::kQuantGranularity},
    {"packed.given", Rel::kEq, 1, {}, ReasonCode::kPackedWeightsRequired},
});
constexpr std::array<std::string_view, 2> kInt8Accepts = {"bias", "zero_point"};
constexpr std::array<std::string_view, 4> kPackedAccepts = {"bias", "zero_point", "tensor_scale", "packed"};
constexpr auto kFamily = std::to_array<KernelSpec>({
    {.id = "hwy.mlp.linear.quantized.gemv_int8",
     .operation = "mlp.linear.quantized",
     .dtypes = kF32F16BF16,
     .constraints = kInt8Constraints,
     .accepts = kInt8Accepts,
     .strides = Strides::kLastDimDense,
     .priority = 80,
     .deterministic = true,
     .launch = &LaunchBest},
    {.id = "hwy.mlp.linear.quantized.gemv_packed4",
     .operation = "mlp.linear.quantized",
     .dtypes = kF32F16BF16,
     .constraints = kPackedConstraints,
     .accepts = kPackedAccepts,
     .strides = Strides::kLastDimDense,
     .priority = 80,
     .deterministic = true,
     .launch = &LaunchBest},
});
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
#endif  // HWY_ONCE
