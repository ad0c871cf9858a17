// The workspace for the hidden rows of a feed-forward block: how many are processed at once, and their elements.
#pragma once

#include "core/dtype.h"
#include "kernels/gemm/blocking.h"

namespace lz {

constexpr int64_t kHiddenTileRows = 10 * gemm::kBlockRows;

// Bytes of an element of a hidden row: `Intermediate` of kernels/simd.h.
inline int64_t HiddenBytes(DType input) { return input == DType::kF16 ? 4 : int64_t(ByteSize(input)); }

}  // namespace lz
