// Quantized weights as bf16 or float in registers, exactly, for the kernels with AVX512-BF16 and AVX512-VBMI; and the
// order in which they are decoded. For files of x86-64 only.
#pragma once

#include <array>
#include <cstdint>

#include "core/float_formats.h"
#include "kernels/x86_intrinsics.h"
#include "ops/common/quant_math.h"

namespace lz::quantized {

// Storage formats that differ in how they become numbers. A step is 64 bytes: 128 or 64 values.
enum class Storage : uint8_t { kNibbles, kPackedNibbles, kIntegers, kFloats };
constexpr bool IsHalfByte(Storage storage) {
  return storage == Storage::kNibbles || storage == Storage::kPackedNibbles;
}
constexpr int VectorsOf(Storage storage) { return IsHalfByte(storage) ? 4 : 2; }

// The index among 128 values of word `word` of vector `vector`. A step of bytes has two vectors, of 64 values. Integers
// as floats are the bytes of their lanes.
constexpr int PositionOf(Storage storage, int vector, int word, bool floats) {
  if (floats && storage == Storage::kIntegers) return vector / 2 * 64 + word / 2 * 4 + vector % 2 * 2 + word % 2;
  if (storage == Storage::kNibbles) return 4 * word + vector;
  if (storage == Storage::kPackedNibbles) return word / 8 * 32 + word % 8 * 2 + vector % 2 * 16 + vector / 2;
  return vector / 2 * 64 + word / 8 * 16 + vector % 2 * 8 + word % 8;
}

// Puts 128 words in that order.
class Order {
 public:
  Order(Storage storage, bool floats) {
    for (int v = 0; v < 4; ++v) {
      upper_[v] = 0;
      for (int word = 0; word < 32; ++word) {
        const int position = PositionOf(storage, v, word, floats);
        index_[v][word] = uint16_t(position % 64);
        upper_[v] |= uint32_t(position / 64) << word;
      }
    }
  }
  static const Order& Of(Storage storage, bool floats) {
    static const Order all[] = {Order(Storage::kNibbles, false), Order(Storage::kPackedNibbles, false),
                                Order(Storage::kIntegers, false), Order(Storage::kIntegers, true)};
    if (storage == Storage::kFloats) return all[2];
    return all[int(storage) + (storage == Storage::kIntegers && floats)];
  }
  // `count` values of x, then zeros; vectors `stride` values apart.
  LZ_AVX512BF16_VBMI void Put(const uint16_t* x, int64_t count, uint16_t* out, int64_t stride) const {
    __m512i in[4];
    for (int v = 0; v < 4; ++v) {
      const int64_t left = count - 32 * v;
      const __mmask32 mask = left >= 32 ? ~__mmask32{0} : left <= 0 ? 0 : (__mmask32{1} << left) - 1;
      in[v] = _mm512_maskz_loadu_epi16(mask, x + (left > 0 ? 32 * v : 0));
    }
    for (int v = 0; v < 4; ++v) {
      const __m512i index = _mm512_load_si512(index_[v]);
      const __m512i low = _mm512_permutex2var_epi16(in[0], index, in[1]);
      const __m512i high = _mm512_permutex2var_epi16(in[2], index, in[3]);
      _mm512_storeu_si512(out + v * stride, _mm512_mask_blend_epi16(upper_[v], low, high));
    }
  }

 private:
  alignas(64) uint16_t index_[4][32];
  uint32_t upper_[4];
};

// The bf16 values of bytes below 128, as two tables of bytes; or of half bytes, as one table of words.
struct Tables {
  // Tables of a format. The value for byte w of an integer is w + 1/2, whose distance from 0 equals that for ~w.
  explicit Tables(int64_t format) {
    if (ops::kQuantInfo[size_t(format)].pack == 2) {
      for (int i = 0; i < 32; ++i) words[i] = Bits(NibbleValue(format, uint8_t(i % 16)));
      return;
    }
    for (int i = 0; i < 128; ++i) {
      const uint16_t bits = Bits(ops::IsInteger(format) ? float(i) + 0.5f : ops::CodeValue(format, uint8_t(i), 0));
      low[i] = uint8_t(bits), high[i] = uint8_t(bits >> 8);
    }
  }
  static const Tables& Of(int64_t format) {
    using namespace ops;
    static const Tables all[kQuantFormats] = {
        Tables(kInt8),    Tables(kUInt8),     Tables(kInt4),      Tables(kUInt4), Tables(kFP8E4M3),
        Tables(kFP8E5M2), Tables(kMXFP8E4M3), Tables(kMXFP8E5M2), Tables(kMXFP4), Tables(kNVFP4)};
    return all[format];
  }
  static uint16_t Bits(float exact) { return FloatToBF16(exact); }
  static float NibbleValue(int64_t format, uint8_t byte) {
    return ops::IsUnsigned(format) ? float(byte - 8) : ops::CodeValue(format, byte, 0);
  }

  alignas(64) uint16_t words[32] = {};
  alignas(64) uint8_t low[128] = {}, high[128] = {};
};

// Tables in registers.
template <Storage kStorage>
class Decoder {
 public:
  // flip: 128 if integers have no sign.
  LZ_AVX512BF16_VBMI_INLINE Decoder(const Tables& t, int flip) {
    if constexpr (IsHalfByte(kStorage)) {
      table_[0] = _mm512_load_si512(t.words);
    } else {
      table_[0] = _mm512_load_si512(t.low), table_[1] = _mm512_load_si512(t.low + 64);
      table_[2] = _mm512_load_si512(t.high), table_[3] = _mm512_load_si512(t.high + 64);
      flip_ = _mm512_set1_epi8(char(flip));
    }
  }
  // 64 bytes of weights for X, which is uint16_t for bf16, or float: half bytes and integers for floats unchanged, of
  // others the lower and the upper bytes of their bf16.
  struct Lookup {
    __m512i v[2];
  };
  template <class X>
  LZ_AVX512BF16_VBMI_INLINE Lookup LookUp(__m512i weights) const {
    if constexpr (IsHalfByte(kStorage)) return {weights};
    __m512i index = weights;
    if constexpr (kStorage == Storage::kIntegers) {
      weights = _mm512_xor_si512(weights, flip_);
      if constexpr (sizeof(X) == sizeof(float)) return {weights};
      index = _mm512_max_epi8(weights, _mm512_ternarylogic_epi32(weights, weights, weights, 0x55));  // w or ~w
    }
    return {_mm512_permutex2var_epi8(table_[0], index, table_[1]),
            WithSign(_mm512_permutex2var_epi8(table_[2], index, table_[3]), weights)};
  }
  // Vector `v` of them: all of its bf16, or as floats the lower or the upper words (of integers, bytes) of lanes.
  template <class X>
  LZ_AVX512BF16_VBMI_INLINE auto Get(const Lookup& looked_up, int v, int half) const {
    if constexpr (sizeof(X) == sizeof(float)) {
      if constexpr (kStorage == Storage::kIntegers)  // unchanged; unsigned ones minus 128
        return ToFloats(_mm512_slli_epi32(looked_up.v[0], unsigned(24 - 16 * v - 8 * half)));
      const __m512i both = Words(looked_up, v), upper = _mm512_set1_epi32(int(0xffff0000));
      return (__m512)(half == 0 ? _mm512_slli_epi32(both, 16) : _mm512_and_si512(both, upper));
    } else {
      return (__m512bh)Words(looked_up, v);
    }
  }

 private:
  LZ_AVX512BF16_VBMI_INLINE __m512i Words(const Lookup& looked_up, int v) const {
    if constexpr (IsHalfByte(kStorage)) {  // the bit above the index selects one of two equal halves of the table
      const __m512i index = v == 0 ? looked_up.v[0] : _mm512_srli_epi16(looked_up.v[0], unsigned(4 * v));
      return _mm512_permutexvar_epi16(index, table_[0]);
    } else {
      return v == 0 ? _mm512_unpacklo_epi8(looked_up.v[0], looked_up.v[1])
                    : _mm512_unpackhi_epi8(looked_up.v[0], looked_up.v[1]);
    }
  }
  // The upper bytes of lanes.
  LZ_AVX512BF16_VBMI_INLINE static __m512 ToFloats(__m512i v) { return _mm512_cvtepi32_ps(_mm512_srai_epi32(v, 24)); }
  LZ_AVX512BF16_VBMI_INLINE static __m512i WithSign(__m512i high, __m512i weights) {
    return _mm512_ternarylogic_epi32(high, weights, _mm512_set1_epi8(char(0x80)), 0xf8);  // high | (weights & 0x80)
  }
  __m512i table_[4], flip_;
};

// 64 scales of one byte as the upper two bytes of their floats.
class PairScales {
 public:
  // e4m3: their tables; null: they are E8M0.
  LZ_AVX512BF16_VBMI_INLINE void Load(const uint8_t* weights, __mmask64 mask, const Tables* e4m3) {
    const __m512i v = _mm512_maskz_loadu_epi8(mask, weights), top = _mm512_set1_epi8(char(0x80));
    if (!e4m3) {  // the exponent's eight bits; 0 is the denormal 2^-127, 255 becomes infinite
      high_ = _mm512_and_si512(_mm512_srli_epi16(v, 1), _mm512_set1_epi8(0x7f));
      low_ = _mm512_and_si512(_mm512_slli_epi16(v, 7), top);
      low_ = _mm512_mask_blend_epi8(_mm512_testn_epi8_mask(v, v), low_, _mm512_set1_epi8(0x40));
    } else {
      low_ = _mm512_permutex2var_epi8(_mm512_load_si512(e4m3->low), v, _mm512_load_si512(e4m3->low + 64));
      high_ = _mm512_permutex2var_epi8(_mm512_load_si512(e4m3->high), v, _mm512_load_si512(e4m3->high + 64));
      high_ = _mm512_ternarylogic_epi32(high_, v, top, 0xf8);
    }
  }
  // Scale index[l] in lane l; the index comes from IndexOf plus offsets of its bytes.
  LZ_AVX512BF16_VBMI_INLINE __m512 operator()(__m512i index) const {
    return (__m512)_mm512_maskz_permutex2var_epi8(0xccccccccccccccccull, low_, index, high_);
  }
  // The places of the two bytes of each of `lanes`.
  LZ_AVX512BF16_VBMI_INLINE static __m512i IndexOf(__m512i lanes) {
    const __m512i both = _mm512_or_si512(_mm512_slli_epi32(lanes, 16), _mm512_slli_epi32(lanes, 24));
    return _mm512_or_si512(both, _mm512_set1_epi32(0x40000000));
  }

 private:
  __m512i low_, high_;
};

}  // namespace lz::quantized
