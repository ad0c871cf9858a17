// The facts of one call: 32 numbers of 32 bits, compared as ranges on a hit. registry/operation.h defines the slots.
#pragma once

#include <cstdint>

#include "core/limits.h"

namespace lz {
struct alignas(64) Facts {
  int32_t v[kFactSlots];
};
}  // namespace lz
