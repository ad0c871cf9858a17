// The 128x4 order of block scales: the place of the scale of row r and block c. Source: the scale-factor layout of
// cuBLASLt's block-scaled matrix products; CUTLASS, cuDNN and tcgen05 use the same.
#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace lz::ops {

inline constexpr DTypeMask kScaleBytes = Mask(DType::kU8, DType::kF8E8M0, DType::kF8E4M3);

constexpr int64_t SwizzledSize(int64_t rows, int64_t columns) { return (rows + 127) / 128 * ((columns + 3) / 4) * 512; }
constexpr int64_t SwizzledOffset(int64_t r, int64_t c, int64_t columns) {
  return (r / 128 * ((columns + 3) / 4) + c / 4) * 512 + r % 32 * 16 + r % 128 / 32 * 4 + c % 4;
}

}  // namespace lz::ops
