// Fixed limits of a call: requests are on the stack and facts in vector registers.
#pragma once

#include <cstddef>

namespace lz {
inline constexpr size_t kMaxTensors = 16;  // parameters and outputs of one contract
inline constexpr size_t kMaxOutputs = 4;
inline constexpr size_t kMaxScalars = 16;
inline constexpr size_t kMaxAxes = 16;
inline constexpr int kMaxRank = 8;
inline constexpr size_t kFactSlots = 32;
}  // namespace lz
