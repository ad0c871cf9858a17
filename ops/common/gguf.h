// GGUF's block formats: sizes, and the values of a block as stored in the file or as linear_gguf_prepack stores it.
// Source: GGUF specification and ggml-quants of ggml (block_q4_0 to block_q6_K).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/contract.h"
#include "core/float_formats.h"

namespace lz::ops::gguf {

enum Format { kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ8_0, kQ4_K, kQ5_K, kQ6_K, kFormats };

inline constexpr std::string_view kFormatNames = "q4_0|q4_1|q5_0|q5_1|q8_0|q4_k|q5_k|q6_k";
inline constexpr std::array<int64_t, kFormats> kBlockColumns = {32, 32, 32, 32, 32, 256, 256, 256};
inline constexpr std::array<int64_t, kFormats> kBlockBytes = {18, 20, 22, 24, 34, 144, 176, 210};

// Checks that rows of `columns` values have these bytes; an error names `field`.
inline Status CheckRows(int64_t format, int64_t columns, int64_t row_bytes, std::string_view columns_field,
                        std::string_view data_field) {
  const int64_t values = kBlockColumns[size_t(format)];
  if (columns < 0 || columns % values != 0) {
    return Status(StatusCode::kInvalidRequest, {.field = std::string(columns_field),
                                                .wanted = "a multiple of " + std::to_string(values) + ", not negative",
                                                .got = std::to_string(columns),
                                                .fix = "pass the unquantized row length"});
  }
  const int64_t wanted = columns / values * kBlockBytes[size_t(format)];
  if (row_bytes == wanted) return {};
  return Status(StatusCode::kInvalidRequest, {.field = std::string(data_field),
                                              .wanted = std::to_string(wanted) + " bytes a row",
                                              .got = std::to_string(row_bytes),
                                              .fix = "check format and columns: a block of " + std::to_string(values) +
                                                     " values has " + std::to_string(kBlockBytes[size_t(format)]) +
                                                     " bytes in " + std::string(ChoiceName(kFormatNames, format))});
}

// The parts of a value: every format is one of the sums of Value().
struct Parts {
  int code = 0;        // unsigned, also for q8_0: its byte + 128
  float d = 0, m = 0;  // as stored
  int s = 1, t = 0;    // K formats: factors of d and m
};

// In float: with the roundings of GGML's dequantization. In double: exact.
template <class Real>
Real Value(int64_t format, const Parts& p) {
  const Real d = p.d, m = p.m;
  switch (format) {
    case kQ4_0: return d * Real(p.code - 8);
    case kQ5_0: return d * Real(p.code - 16);
    case kQ8_0: return d * Real(p.code - 128);
    case kQ6_K: {
      const Real scale = d * Real(p.s);
      return scale * Real(p.code - 32);
    }
    case kQ4_1:
    case kQ5_1: {
      const Real product = d * Real(p.code);
      return product + m;
    }
    default: {
      const Real scale = d * Real(p.s), minimum = m * Real(p.t);
      const Real product = scale * Real(p.code);
      return product - minimum;
    }
  }
}

// A block as stored in the file; byte(i) reads it.
template <class Byte>
class FileBlock {
 public:
  FileBlock(int64_t format, Byte byte) : format_(format), byte_(byte) {}

  Parts At(int64_t i) const {
    if (format_ == kQ6_K) return Q6(i);
    return format_ < kQ4_K ? Small(i) : K(i);
  }

 private:
  float Half(int64_t at) const { return F16ToFloat(uint16_t(byte_(at) | byte_(at + 1) << 8)); }
  int Nibble(int64_t at, bool high) const { return byte_(at) >> (high ? 4 : 0) & 15; }

  Parts Small(int64_t i) const {
    Parts p{.d = Half(0)};
    if (format_ == kQ8_0) {
      p.code = byte_(2 + i) ^ 128;
      return p;
    }
    const bool five = format_ == kQ5_0 || format_ == kQ5_1, minimum = format_ == kQ4_1 || format_ == kQ5_1;
    const int64_t bits = minimum ? 4 : 2, codes = five ? bits + 4 : bits;
    p.code = Nibble(codes + i % 16, i >= 16);
    if (five) p.code |= (byte_(bits + i / 8) >> i % 8 & 1) << 4;
    if (minimum) p.m = Half(2);
    return p;
  }
  Parts K(int64_t i) const {
    const int64_t j = i / 32;  // index within the scales in bytes 4 to 15
    Parts p{.d = Half(0), .m = Half(2)};
    p.s = j < 4 ? byte_(4 + j) & 63 : (byte_(8 + j) & 15) | byte_(j) >> 6 << 4;
    p.t = j < 4 ? byte_(8 + j) & 63 : byte_(8 + j) >> 4 | byte_(4 + j) >> 6 << 4;
    p.code = Nibble((format_ == kQ5_K ? 48 : 16) + i / 64 * 32 + i % 32, i % 64 >= 32);
    if (format_ == kQ5_K) p.code |= (byte_(16 + i % 32) >> j & 1) << 4;
    return p;
  }
  Parts Q6(int64_t i) const {
    const int64_t half = i / 128, c = i % 128 / 32, j = i % 32;
    const int low = Nibble(half * 64 + c % 2 * 32 + j, c >= 2);
    return {
        .code = low | (byte_(128 + half * 32 + j) >> 2 * c & 3) << 4, .d = Half(208), .s = int8_t(byte_(192 + i / 16))};
  }

  int64_t format_;
  Byte byte_;
};

// ---- packed: groups of 16 rows, so that a vector's lanes are rows and every lane's 4 bytes are 4 values of its row. A
// group: the quantized values of all its blocks of 32, then their scales; rounded up to 64 bytes.
//   values  four-bit part: 4 x [16 rows][4]: byte j of part c has value 4 c + j low and value 16 + 4 c + j high;
//           q6_k then its two high bits: 2 x [16 rows][4]: bits 2 f of byte j of part h are those of value
//           16 h + 4 f + j; q8_0 instead 8 x [16 rows][4]: byte j of part c is value 4 c + j, plus 128
//   scales  q4_0, q8_0 d[16]; q4_1 d[16] m[16]; q4_k for 256 values d[16] m[16], then 8 x (s[16] t[16]); q6_k for 256
//           values d[16], then 8 x (s of the first 16 values [16], s of the others [16]). d, m float16; s, t a byte
inline constexpr int64_t kGroupRows = 16;
inline constexpr std::array<int64_t, kFormats> kPackedCodes = {256, 256, 0, 0, 512, 256, 0, 384};  // bytes of 32 x
                                                                                                   // 16 values
inline constexpr std::array<int64_t, kFormats> kPackedScales = {32, 64, 0, 0, 32, 40, 0, 36};
// Quantized values and scales, by format, for shapes of contracts.
#define LZ_GGUF_PACKED_BYTES "(k / 32 * format[288, 320, 0, 0, 544, 296, 0, 420] + 63) / 64 * 64"

constexpr int64_t PackedBytes(int64_t format, int64_t columns) {
  return (columns / 32 * (kPackedCodes[size_t(format)] + kPackedScales[size_t(format)]) + 63) / 64 * 64;
}
constexpr int64_t ScalesBegin(int64_t format, int64_t columns) { return columns / 32 * kPackedCodes[size_t(format)]; }

inline Status CheckPackable(int64_t format, std::string_view field) {
  if (kPackedCodes[size_t(format)] != 0) return {};
  return Status(StatusCode::kInvalidRequest, {.field = std::string(field),
                                              .wanted = "q4_0, q4_1, q8_0, q4_k or q6_k where weights are packed",
                                              .got = std::string(ChoiceName(kFormatNames, format)),
                                              .fix = "use the weight as stored in the file"});
}

// The places of the parts of value `i` of a row in its group.
struct PackedPlace {
  PackedPlace(int64_t format, int64_t columns, int64_t row, int64_t i) {
    const int64_t block = i / 32, in = i % 32, codes = kPackedCodes[size_t(format)], lane = row % kGroupRows;
    if (format == kQ8_0) {
      code = block * codes + in / 4 * 64 + lane * 4 + in % 4;
    } else {
      code = block * codes + in % 16 / 4 * 64 + lane * 4 + in % 4;
      shift = in >= 16 ? 4 : 0;
      high = block * codes + 256 + in / 16 * 64 + lane * 4 + in % 4;
      high_shift = 2 * (in % 16 / 4);
    }
    const int64_t scales = ScalesBegin(format, columns);
    switch (format) {
      case kQ4_1: d = scales + block * 64 + lane * 2, m = d + 32; break;
      case kQ4_K:
        d = scales + block / 8 * 320 + lane * 2, m = d + 32;
        s = scales + block / 8 * 320 + 64 + block % 8 * 32 + lane, t = s + 16;
        break;
      case kQ6_K:
        d = scales + block / 8 * 288 + lane * 2;
        s = scales + block / 8 * 288 + 32 + block % 8 * 32 + in / 16 * 16 + lane;
        break;
      default: d = scales + block * 32 + lane * 2;
    }
  }
  int64_t code, shift = 0, high = -1, high_shift = 0;
  int64_t d, m = -1, s = -1, t = -1;
};

template <class Byte>
Parts PackedAt(int64_t format, int64_t columns, int64_t row, int64_t i, Byte byte) {
  const PackedPlace at(format, columns, row, i);
  const auto half = [&](int64_t place) { return F16ToFloat(uint16_t(byte(place) | byte(place + 1) << 8)); };
  Parts p{.code = format == kQ8_0 ? int(byte(at.code)) : byte(at.code) >> at.shift & 15, .d = half(at.d)};
  if (format == kQ6_K) p.code |= (byte(at.high) >> at.high_shift & 3) << 4;
  if (at.m >= 0) p.m = half(at.m);
  if (at.s >= 0) p.s = format == kQ6_K ? int(int8_t(byte(at.s))) : int(byte(at.s));
  if (at.t >= 0) p.t = byte(at.t);
  return p;
}

// ---- activations in int8, in blocks of 32: a[i] = round(x[i] * (127 / amax)), ties to even, and d = amax / 127, in
// float32. A block with an infinite value or NaN has d = NaN; in one whose 127 / amax could overflow float32 all a[i]
// are 0.
inline constexpr int64_t kActivationBlock = 32;
inline constexpr float kLeastActivation = 0x1p-120f;  // the least amax for which they are not all 0

}  // namespace lz::ops::gguf
