// A dispatch table as data: which kernel for which class of calls.
//
//   entry: operation "attention.causal", s_q in [129, 512], query.dtype in [bfloat16, bfloat16], ... -> kernel, time
//
// A condition is a variable of the operation and the values that it may have. Variables are fields of the operation
// ("s_q", "query.dtype"), and comparisons that no field represents ("s_q % 16 == 0"), which are 1 or 0.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

namespace lz::table {

// Both ends included.
struct Interval {
  int32_t lo = std::numeric_limits<int32_t>::min();
  int32_t hi = std::numeric_limits<int32_t>::max();
  bool Has(int64_t v) const { return v >= lo && v <= hi; }
  auto operator<=>(const Interval&) const = default;
};

struct Entry {
  std::string operation;  // id: "norm.rms"
  std::string kernel;
  std::map<std::string, Interval> when;  // by variable; one that is not named may have any value
  uint32_t plan = 0;                     // index of the plan (bucket) that the entry is listed under
  float us = 0;                          // measured time; 0: none is known
};

struct Content {
  std::string about;  // JSON, small: what the table was made for and of; see docs/design/0037-tables.md
  std::vector<Entry> entries;
};

}  // namespace lz::table
