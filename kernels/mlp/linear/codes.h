// How far ahead the kernels of few rows ask for weights.
#pragma once

#include <algorithm>
#include <cstdint>

namespace lz::linear {

constexpr int64_t kCodesAhead = 4096;  // bytes of codes that are asked for early; docs/design/0011

// `wanted` bytes as whole tiles of `tile_bytes`, one at least: rows of a tile are read side by side, so that anything
// nearer is being read already.
constexpr int64_t WholeTiles(int64_t wanted, int64_t tile_bytes) {
  const int64_t tile = std::max<int64_t>(1, tile_bytes);
  return tile * std::max<int64_t>(1, (wanted + tile / 2) / tile);
}

}  // namespace lz::linear
