// Lists of constraints that rows of a family share, and those of one row.
#pragma once

#include <array>

#include "core/kernel.h"

namespace lz {

// `first`, then `more`.
template <size_t kFirst, size_t kMore>
constexpr auto Joined(const std::array<Constraint, kFirst>& first, const Constraint (&more)[kMore]) {
  std::array<Constraint, kFirst + kMore> all;
  for (size_t i = 0; i < kFirst; ++i) all[i] = first[i];
  for (size_t i = 0; i < kMore; ++i) all[kFirst + i] = more[i];
  return all;
}

}  // namespace lz
