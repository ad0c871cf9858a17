// How a row of keys or values becomes a slot of a paged cache, for references.
#pragma once

#include <cstring>

#include "ops/common/kv_rows.h"

namespace lz::ops::kv {

// Stores row `row` of `rows` [n, h, d] in a slot of `cache` [blocks, block_size, h, d].
inline void WriteRow(const View& cache, const View& rows, const View& scale, int64_t row, int64_t slot) {
  const int64_t size = cache.size(1), block = slot / size, offset = slot % size, item = ByteSize(cache.dtype());
  const bool copies = rows.dtype() == cache.dtype() && !scale.given();
  for (int64_t h = 0; h < cache.size(2); ++h) {
    const float unit = ScaleOf(scale, h);
    for (int64_t i = 0; i < cache.size(3); ++i) {
      const int64_t to = block * cache.stride(0) + offset * cache.stride(1) + h * cache.stride(2) + i * cache.stride(3);
      const int64_t from = row * rows.stride(0) + h * rows.stride(1) + i * rows.stride(2);
      if (copies) {
        std::memcpy(cache.data<char>() + to * item, rows.data<char>() + from * item, size_t(item));
      } else {
        StoreValue(cache, to, float(rows.Load(from)) / unit);
      }
    }
  }
}

}  // namespace lz::ops::kv
