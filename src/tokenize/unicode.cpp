#include "tokenize/unicode.h"

#include <algorithm>
#include <cstring>

namespace lz::tokenize {
namespace {

struct Run {
  uint32_t first;
  uint16_t bits;
};
constexpr Run kRuns[] = {
#include "tokenize/unicode_tables.inc"
};

bool IsTail(uint8_t byte) { return (byte & 0xC0) == 0x80; }

// The longest beginning of a character at `at`: its bytes, at least one, and whether it is a whole character.
struct Sequence {
  size_t bytes;
  bool whole;
};
Sequence SequenceAt(const uint8_t* at, const uint8_t* end) {
  const uint8_t first = at[0];
  const size_t size = first < 0x80 ? 1 : first < 0xC2 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 0;
  for (size_t i = 1; i < size; ++i) {
    if (at + i == end || !IsTail(at[i])) return {i, false};
    if (i > 1) continue;
    const bool overlong = (first == 0xE0 && at[1] < 0xA0) || (first == 0xF0 && at[1] < 0x90);
    const bool outside = (first == 0xED && at[1] > 0x9F) || (first == 0xF4 && at[1] > 0x8F);
    if (overlong || outside) return {1, false};
  }
  return {std::max<size_t>(size, 1), size > 0};
}

}  // namespace

CodeTable::CodeTable() {
  size_t blocks = 0, run = 0;
  constexpr size_t kNumRuns = sizeof(kRuns) / sizeof(kRuns[0]);
  for (uint32_t page = 0; page < 0x1100; ++page) {
    uint16_t block[256];
    for (uint32_t i = 0; i < 256; ++i) {
      while (run + 1 < kNumRuns && kRuns[run + 1].first <= page * 256 + i) ++run;
      block[i] = kRuns[run].bits;
    }
    size_t same = 0;
    while (same < blocks && std::memcmp(blocks_[same], block, sizeof(block)) != 0) ++same;
    if (same == blocks && blocks < kMostBlocks) std::memcpy(blocks_[blocks++], block, sizeof(block));
    pages_[page] = uint16_t(same);
  }
}

const CodeTable& CodeTable::Get() {
  static const CodeTable table;
  return table;
}

bool IsUtf8(std::string_view text) {
  const auto* at = reinterpret_cast<const uint8_t*>(text.data());
  const uint8_t* const end = at + text.size();
  while (at < end) {
    uint64_t eight;
    while (end - at >= 8 && (std::memcpy(&eight, at, 8), (eight & 0x8080808080808080u) == 0)) at += 8;
    if (at == end) break;
    const Sequence one = SequenceAt(at, end);
    if (!one.whole) return false;
    at += one.bytes;
  }
  return true;
}

void AppendAsUtf8(std::string_view bytes, std::string* text) {
  if (IsUtf8(bytes)) {
    text->append(bytes);
    return;
  }
  const auto* const data = reinterpret_cast<const uint8_t*>(bytes.data());
  for (size_t at = 0; at < bytes.size();) {
    const Sequence one = SequenceAt(data + at, data + bytes.size());
    text->append(one.whole ? bytes.substr(at, one.bytes) : "\xEF\xBF\xBD");
    at += one.bytes;
  }
}

}  // namespace lz::tokenize
