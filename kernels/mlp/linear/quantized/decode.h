// Quantized weights as f32: their values, with the scales of scales.h, for the kernels of mlp.linear.quantized. Include
// only from files that Highway compiles per target (after hwy/highway.h).
#if defined(LZ_KERNELS_MLP_LINEAR_QUANTIZED_DECODE_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LZ_KERNELS_MLP_LINEAR_QUANTIZED_DECODE_H_
#undef LZ_KERNELS_MLP_LINEAR_QUANTIZED_DECODE_H_
#else
#define LZ_KERNELS_MLP_LINEAR_QUANTIZED_DECODE_H_
#endif

#include <algorithm>
#include <cstring>

#include "kernels/launch.h"
#include "kernels/mlp/linear/quantized/scales.h"
#include "kernels/simd.h"
#include "ops/mlp/linear/quantized.h"

HWY_BEFORE_NAMESPACE();
namespace lz {
namespace HWY_NAMESPACE {
namespace quantized {
using namespace lz::ops;
using namespace lz::ops::mlp_linear_quantized;

// The values of 4-bit codes; E2M1 doubled, so that all are integers.
alignas(16) inline constexpr int8_t kSigned[16] = {0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1};
alignas(16) inline constexpr int8_t kUnsigned[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
alignas(16) inline constexpr int8_t kE2M1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
inline const int8_t* MeaningOf(int64_t format) {
  return format == kInt4 ? kSigned : format == kUInt4 ? kUnsigned : kE2M1;
}

// The storage formats that differ in how they become floats.
enum class Codes : uint8_t { kSignedBytes, kBytes, kNibbles, kPackedNibbles, kE4M3, kE5M2 };
inline Codes CodesOf(int64_t format, bool packed) {
  if (kQuantInfo[size_t(format)].pack == 2) return packed ? Codes::kPackedNibbles : Codes::kNibbles;
  if (format == kInt8) return Codes::kSignedBytes;
  if (format == kUInt8) return Codes::kBytes;
  return kQuantInfo[size_t(format)].dtype == DType::kF8E4M3 ? Codes::kE4M3 : Codes::kE5M2;
}

constexpr int64_t kChunk = 32;  // weights that are decoded at a time

// E4M3 and E5M2 with integer operations on float's bits: exponents are rebased, values below them converted
// as integers.
template <Codes kCodes, class DI>
HWY_INLINE hn::Vec<DI> Float8Bits(DI di, hn::Vec<DI> code) {
  constexpr bool kE4 = kCodes == Codes::kE4M3;
  constexpr int kShift = kE4 ? 20 : 21, kBias = kE4 ? 120 : 112, kFirstNormal = kE4 ? 8 : 4;
  const hn::RebindToFloat<DI> d;
  const auto magnitude = hn::And(code, hn::Set(di, 0x7f));
  const auto sign = hn::ShiftLeft<24>(hn::And(code, hn::Set(di, 0x80)));
  const auto normal = hn::Add(hn::ShiftLeft<kShift>(magnitude), hn::Set(di, kBias << 23));
  const auto below = hn::Mul(hn::ConvertTo(d, magnitude), hn::Set(d, kE4 ? 0x1p-9f : 0x1p-16f));
  auto bits = hn::IfThenElse(hn::Lt(magnitude, hn::Set(di, kFirstNormal)), hn::BitCast(di, below), normal);
  if constexpr (kE4) {
    bits = hn::IfThenElse(hn::Eq(magnitude, hn::Set(di, 0x7f)), hn::Set(di, 0x7fc00000), bits);
  } else {
    bits = hn::IfThenElse(hn::Gt(magnitude, hn::Set(di, 0x7b)), hn::Or(normal, hn::Set(di, 0x7f800000)), bits);
  }
  return hn::Or(bits, sign);
}

template <class Byte>
HWY_INLINE void StoreIntegers(const Byte* codes, float* out) {
  const hn::CappedTag<float, kChunk> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<Byte, decltype(d)> d8;
  for (int64_t i = 0; i < kChunk; i += int64_t(hn::Lanes(d))) {
    hn::StoreU(hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d8, codes + i))), d, out + i);
  }
}

// The values of the 4-bit codes of a chunk.
template <Codes kCodes>
HWY_INLINE void ExpandNibbles(const uint8_t* codes, const int8_t* meaning, int8_t* out) {
  const hn::FixedTag<uint8_t, 16> d16;
  const hn::RebindToSigned<decltype(d16)> s16;
  const auto table = hn::Load(s16, meaning);
  const auto bytes = hn::LoadU(d16, codes);
  const auto low = hn::TableLookupBytes(table, hn::BitCast(s16, hn::And(bytes, hn::Set(d16, 15))));
  const auto high = hn::TableLookupBytes(table, hn::BitCast(s16, hn::ShiftRight<4>(bytes)));
  constexpr bool kInOrder = kCodes == Codes::kPackedNibbles;  // 16 low halves, then the high ones
  hn::StoreU(kInOrder ? low : hn::InterleaveLower(s16, low, high), s16, out);
  hn::StoreU(kInOrder ? high : hn::InterleaveUpper(s16, low, high), s16, out + 16);
}

// out[0 .. kChunk) from kChunk quantized weights.
template <Codes kCodes>
HWY_INLINE void DecodeChunk(const uint8_t* codes, const int8_t* meaning, float* out) {
  if constexpr (kCodes == Codes::kSignedBytes) {
    StoreIntegers(reinterpret_cast<const int8_t*>(codes), out);
  } else if constexpr (kCodes == Codes::kBytes) {
    StoreIntegers(codes, out);
  } else if constexpr (kCodes == Codes::kNibbles || kCodes == Codes::kPackedNibbles) {
    int8_t integers[kChunk];
    ExpandNibbles<kCodes>(codes, meaning, integers);
    StoreIntegers(integers, out);
  } else {
    const hn::CappedTag<float, kChunk> d;
    const hn::RebindToSigned<decltype(d)> di;
    const hn::Rebind<uint8_t, decltype(d)> d8;
    for (int64_t i = 0; i < kChunk; i += int64_t(hn::Lanes(d))) {
      const auto code = hn::PromoteTo(di, hn::LoadU(d8, codes + i));
      hn::StoreU(hn::BitCast(d, Float8Bits<kCodes>(di, code)), d, out + i);
    }
  }
}

// Any number of quantized weights; `out` has room for whole chunks.
template <Codes kCodes>
void DecodeCodes(const uint8_t* codes, const int8_t* meaning, int64_t size, float* out) {
  constexpr int64_t kBytes = kCodes == Codes::kNibbles || kCodes == Codes::kPackedNibbles ? kChunk / 2 : kChunk;
  int64_t i = 0;
  for (; i + kChunk <= size; i += kChunk, codes += kBytes) DecodeChunk<kCodes>(codes, meaning, out + i);
  if (i == size) return;
  uint8_t rest[kBytes] = {};  // nothing past the row is read
  std::memcpy(rest, codes, size_t((size - i) * kBytes + kChunk - 1) / kChunk);
  DecodeChunk<kCodes>(rest, meaning, out + i);
}

// out[i] = (out[i] - zero) * scale for values `from`, from + 1, ... of a row, each with its group's scale.
inline void ApplyScales(const RowScales& scales, int64_t from, int64_t size, float* out) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  for (int64_t i = 0; i < size;) {
    const int64_t index = (from + i) / scales.group, end = std::min(size, (index + 1) * scales.group - from);
    const float scale = scales.Scale(index), zero = scales.Zero(index);
    const auto s = hn::Set(d, scale), z = hn::Set(d, zero);
    for (; i + lanes <= end; i += lanes) hn::StoreU(hn::Mul(s, hn::Sub(hn::LoadU(d, out + i), z)), d, out + i);
    for (; i < end; ++i) out[i] = scale * (out[i] - zero);
  }
}

// Rows of the weight of one call.
class Weights {
 public:
  explicit Weights(const lz_kernel_args* args)
      : args_(args),
        codes_(CodesOf(args->scalars[kFormat].value.i, Given(args->tensors[kPacked]))),
        meaning_(MeaningOf(args->scalars[kFormat].value.i)) {
    const lz_tensor& stored = args->tensors[codes_ == Codes::kPackedNibbles ? kPacked : kWeight];
    data_ = Data<const uint8_t>(stored);
    stride_ = stored.strides[0];
    per_byte_ = codes_ == Codes::kNibbles || codes_ == Codes::kPackedNibbles ? 2 : 1;
  }

  Codes codes() const { return codes_; }
  const int8_t* meaning() const { return meaning_; }
  const uint8_t* Row(int64_t row) const { return data_ + row * stride_; }

  // out[0 .. size) = weights [row, from ..); `from` is a multiple of kChunk, `out` has room for whole chunks.
  void Decode(int64_t row, int64_t from, int64_t size, float* out) const {
    const uint8_t* at = Row(row) + from / per_byte_;
    switch (codes_) {
      case Codes::kSignedBytes: DecodeCodes<Codes::kSignedBytes>(at, meaning_, size, out); break;
      case Codes::kBytes: DecodeCodes<Codes::kBytes>(at, meaning_, size, out); break;
      case Codes::kNibbles: DecodeCodes<Codes::kNibbles>(at, meaning_, size, out); break;
      case Codes::kPackedNibbles: DecodeCodes<Codes::kPackedNibbles>(at, meaning_, size, out); break;
      case Codes::kE4M3: DecodeCodes<Codes::kE4M3>(at, meaning_, size, out); break;
      case Codes::kE5M2: DecodeCodes<Codes::kE5M2>(at, meaning_, size, out); break;
    }
    ApplyScales(RowScales(args_, row), from, size, out);
  }

 private:
  const lz_kernel_args* args_;
  Codes codes_;
  const int8_t* meaning_;
  const uint8_t* data_;
  int64_t stride_, per_byte_;
};

}  // namespace quantized
}  // namespace HWY_NAMESPACE
}  // namespace lz
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
