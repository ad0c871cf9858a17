// Prefetch distance of the GEMV kernels with quantized weights.
#pragma once

#include <algorithm>
#include <cstdint>

namespace lz::gemm {

constexpr int64_t kQuantizedPrefetchBytes = 4096;  // prefetch distance in bytes of quantized weights; docs/design/0011

// `wanted` bytes as whole tiles of `tile_bytes`, at least one: the rows of a tile are read together, so that anything
// closer is already being read.
constexpr int64_t WholeTiles(int64_t wanted, int64_t tile_bytes) {
  const int64_t tile = std::max<int64_t>(1, tile_bytes);
  return tile * std::max<int64_t>(1, (wanted + tile / 2) / tile);
}

}  // namespace lz::gemm
