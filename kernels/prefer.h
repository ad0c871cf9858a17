// Preferences of a row that a function of its family makes.
#pragma once

#include "core/kernel.h"

namespace lz {

// The row with other priorities for some of its calls.
constexpr KernelSpec Prefer(KernelSpec spec, std::span<const Preference> preferences) {
  spec.preferences = preferences;
  return spec;
}

}  // namespace lz
