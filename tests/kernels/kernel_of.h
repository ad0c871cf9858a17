// A kernel of a family by its id: families merge, and their order changes.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string_view>

#include "core/kernel.h"

namespace lz {

inline const KernelSpec& KernelOf(KernelFamily family, std::string_view id) {
  static constexpr KernelSpec kNone;  // has no function: a test that calls it ends
  const auto found = std::ranges::find(family, id, &KernelSpec::id);
  if (found != family.end()) return *found;
  ADD_FAILURE() << "the family has no kernel " << id;
  return kNone;
}

}  // namespace lz
