// Code points: their properties as tokenizers compare them, and UTF-8.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lz::tokenize {

// Bits of a code point, of Unicode 16.0. The last five: a text all of whose code points have the bit is not changed by
// that normalization, or by lowercasing.
enum CodeBits : uint16_t {
  kLetter = 1,
  kNumber = 2,
  kSpace = 4,  // White_Space
  kMark = 8,
  kUpper = 16,  // Lu or Lt
  kLower = 32,  // Ll
  kAssigned = 64,
  kStaysNfc = 128,
  kStaysNfkc = 256,
  kStaysNfd = 512,
  kStaysNfkd = 1024,
  kStaysLower = 2048,
};

class CodeTable {
 public:
  static const CodeTable& Get();
  uint16_t operator[](uint32_t code) const { return blocks_[pages_[code >> 8]][code & 255]; }

 private:
  CodeTable();
  static constexpr size_t kMostBlocks = 512;
  uint16_t pages_[0x1100];
  uint16_t blocks_[kMostBlocks][256];
};

// One code point of valid UTF-8 and the number of its bytes.
struct Code {
  uint32_t value;
  uint32_t bytes;
};
inline Code CodeAt(const char* at) {
  const auto byte = [at](int i) { return uint32_t(uint8_t(at[i])); };
  const uint32_t first = byte(0);
  if (first < 0x80) return {first, 1};
  if (first < 0xE0) return {(first & 31) << 6 | (byte(1) & 63), 2};
  if (first < 0xF0) return {(first & 15) << 12 | (byte(1) & 63) << 6 | (byte(2) & 63), 3};
  return {(first & 7) << 18 | (byte(1) & 63) << 12 | (byte(2) & 63) << 6 | (byte(3) & 63), 4};
}
// Whether the text is UTF-8: no surrogates, no overlong forms, nothing above U+10FFFF.
bool IsUtf8(std::string_view text);
// Appends bytes as UTF-8: U+FFFD represents each longest beginning of a character that does not go on, and each
// other byte that begins none (Unicode 16.0, section 3.9).
void AppendAsUtf8(std::string_view bytes, std::string* text);

}  // namespace lz::tokenize
