// The range of the mean square of a row, epsilon included, that FP32 sums can hold: outside it squares overflow or
// vanish, and the CPU kernels of the norms compute the row in FP64.
#pragma once

namespace lz {

inline constexpr float kSmallestSquare = 1e-30f, kLargestSquare = 1e37f;

}  // namespace lz
