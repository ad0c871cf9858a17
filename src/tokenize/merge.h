// Byte pair encoding of one word.
#pragma once

#include <cstdint>
#include <vector>

#include "tokenize/tables.h"

namespace lz::tokenize {

// Merges adjacent symbols, the smallest rank first and the leftmost of equal ones, until no pair is in the table.
// Shortens `symbols`. O(n^2) for up to kShort symbols, O(n log n) for more.
void MergeSymbols(const PairTable& pairs, std::vector<int32_t>* symbols);

inline constexpr size_t kShort = 48;

}  // namespace lz::tokenize
