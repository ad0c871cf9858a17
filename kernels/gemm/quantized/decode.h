// Quantized weights as f32: their values, with the scales of scales.h, for the kernels of mlp.linear.quantized. Include
// only from files that Highway compiles per target (after hwy/highway.h).
#if defined(LZ_KERNELS_GEMM_QUANTIZED_DECODE_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LZ_KERNELS_GEMM_QUANTIZED_DECODE_H_
#undef LZ_KERNELS_GEMM_QUANTIZED_DECODE_H_
#else
#define LZ_KERNELS_GEMM_QUANTIZED_DECODE_H_
#endif

#include <algorithm>
#include <cstring>

#include "kernels/gemm/quantized/scales.h"
#include "kernels/launch.h"
#include "kernels/simd.h"
#include "ops/mlp/linear/quantized.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE::quantized {
using namespace lz::ops;
using namespace lz::ops::mlp_linear_quantized;

// The values of 4-bit weights; E2M1 doubled, so that all are integers.
alignas(16) inline constexpr int8_t kSigned[16] = {0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1};
alignas(16) inline constexpr int8_t kUnsigned[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
alignas(16) inline constexpr int8_t kE2M1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
inline const int8_t* ValuesOfNibbles(int64_t format) {
  return format == kInt4 ? kSigned : format == kUInt4 ? kUnsigned : kE2M1;
}

// The storage formats that differ in how they become floats.
enum class Storage : uint8_t { kSignedBytes, kBytes, kNibbles, kPackedNibbles, kE4M3, kE5M2 };
inline Storage StorageOf(int64_t format, bool packed) {
  if (kQuantInfo[size_t(format)].pack == 2) return packed ? Storage::kPackedNibbles : Storage::kNibbles;
  if (format == kInt8) return Storage::kSignedBytes;
  if (format == kUInt8) return Storage::kBytes;
  return kQuantInfo[size_t(format)].dtype == DType::kF8E4M3 ? Storage::kE4M3 : Storage::kE5M2;
}

constexpr int64_t kChunk = 32;  // weights that are decoded at a time

// E4M3 and E5M2 with integer operations on float's bits: exponents are rebased, values below them converted
// as integers.
template <Storage kStorage, class DI>
HWY_INLINE hn::Vec<DI> Float8Bits(DI di, hn::Vec<DI> byte) {
  constexpr bool kE4 = kStorage == Storage::kE4M3;
  constexpr int kShift = kE4 ? 20 : 21, kBias = kE4 ? 120 : 112, kFirstNormal = kE4 ? 8 : 4;
  const hn::RebindToFloat<DI> d;
  const auto magnitude = hn::And(byte, hn::Set(di, 0x7f));
  const auto sign = hn::ShiftLeft<24>(hn::And(byte, hn::Set(di, 0x80)));
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
HWY_INLINE void StoreIntegers(const Byte* weights, float* out) {
  const hn::CappedTag<float, kChunk> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<Byte, decltype(d)> d8;
  for (int64_t i = 0; i < kChunk; i += int64_t(hn::Lanes(d))) {
    hn::StoreU(hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d8, weights + i))), d, out + i);
  }
}

// The values of the 4-bit weights of a chunk.
template <Storage kStorage>
HWY_INLINE void ExpandNibbles(const uint8_t* weights, const int8_t* values, int8_t* out) {
  const hn::FixedTag<uint8_t, 16> d16;
  const hn::RebindToSigned<decltype(d16)> s16;
  const auto table = hn::Load(s16, values);
  const auto bytes = hn::LoadU(d16, weights);
  const auto low = hn::TableLookupBytes(table, hn::BitCast(s16, hn::And(bytes, hn::Set(d16, 15))));
  const auto high = hn::TableLookupBytes(table, hn::BitCast(s16, hn::ShiftRight<4>(bytes)));
  constexpr bool kInOrder = kStorage == Storage::kPackedNibbles;  // 16 low halves, then the high ones
  hn::StoreU(kInOrder ? low : hn::InterleaveLower(s16, low, high), s16, out);
  hn::StoreU(kInOrder ? high : hn::InterleaveUpper(s16, low, high), s16, out + 16);
}

// out[0 .. kChunk) from kChunk quantized weights.
template <Storage kStorage>
HWY_INLINE void DecodeChunk(const uint8_t* weights, const int8_t* values, float* out) {
  if constexpr (kStorage == Storage::kSignedBytes) {
    StoreIntegers(reinterpret_cast<const int8_t*>(weights), out);
  } else if constexpr (kStorage == Storage::kBytes) {
    StoreIntegers(weights, out);
  } else if constexpr (kStorage == Storage::kNibbles || kStorage == Storage::kPackedNibbles) {
    int8_t integers[kChunk];
    ExpandNibbles<kStorage>(weights, values, integers);
    StoreIntegers(integers, out);
  } else {
    const hn::CappedTag<float, kChunk> d;
    const hn::RebindToSigned<decltype(d)> di;
    const hn::Rebind<uint8_t, decltype(d)> d8;
    for (int64_t i = 0; i < kChunk; i += int64_t(hn::Lanes(d))) {
      const auto byte = hn::PromoteTo(di, hn::LoadU(d8, weights + i));
      hn::StoreU(hn::BitCast(d, Float8Bits<kStorage>(di, byte)), d, out + i);
    }
  }
}

// Any number of quantized weights; `out` has room for whole chunks.
template <Storage kStorage>
void DecodeRow(const uint8_t* weights, const int8_t* values, int64_t size, float* out) {
  constexpr int64_t kBytes = kStorage == Storage::kNibbles || kStorage == Storage::kPackedNibbles ? kChunk / 2 : kChunk;
  int64_t i = 0;
  for (; i + kChunk <= size; i += kChunk, weights += kBytes) DecodeChunk<kStorage>(weights, values, out + i);
  if (i == size) return;
  uint8_t rest[kBytes] = {};  // nothing past the row is read
  std::memcpy(rest, weights, size_t((size - i) * kBytes + kChunk - 1) / kChunk);
  DecodeChunk<kStorage>(rest, values, out + i);
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
        storage_(StorageOf(args->scalars[kFormat].value.i, Given(args->tensors[kPacked]))),
        values_(ValuesOfNibbles(args->scalars[kFormat].value.i)) {
    const lz_tensor& stored = args->tensors[storage_ == Storage::kPackedNibbles ? kPacked : kWeight];
    data_ = Data<const uint8_t>(stored);
    stride_ = stored.strides[0];
    per_byte_ = storage_ == Storage::kNibbles || storage_ == Storage::kPackedNibbles ? 2 : 1;
  }

  Storage storage() const { return storage_; }
  const int8_t* values() const { return values_; }
  const uint8_t* Row(int64_t row) const { return data_ + row * stride_; }

  // out[0 .. size) = weights [row, from ..); `from` is a multiple of kChunk, `out` has room for whole chunks.
  void Decode(int64_t row, int64_t from, int64_t size, float* out) const {
    const uint8_t* at = Row(row) + from / per_byte_;
    switch (storage_) {
      case Storage::kSignedBytes: DecodeRow<Storage::kSignedBytes>(at, values_, size, out); break;
      case Storage::kBytes: DecodeRow<Storage::kBytes>(at, values_, size, out); break;
      case Storage::kNibbles: DecodeRow<Storage::kNibbles>(at, values_, size, out); break;
      case Storage::kPackedNibbles: DecodeRow<Storage::kPackedNibbles>(at, values_, size, out); break;
      case Storage::kE4M3: DecodeRow<Storage::kE4M3>(at, values_, size, out); break;
      case Storage::kE5M2: DecodeRow<Storage::kE5M2>(at, values_, size, out); break;
    }
    ApplyScales(RowScales(args_, row), from, size, out);
  }

 private:
  const lz_kernel_args* args_;
  Storage storage_;
  const int8_t* values_;
  const uint8_t* data_;
  int64_t stride_, per_byte_;
};

}  // namespace lz::HWY_NAMESPACE::quantized
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
