// The order in which own kernels iterate over a product of many rows: weights in panels of 64 columns, in place or
// packed for a block of rows; registers hold tiles of a few rows and a panel. Sums go over k in order, in blocks: their
// order depends only on k.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/launch.h"
#include "kernels/scratch.h"

namespace lz::panels {

inline constexpr int64_t kPanel = 64;       // columns
inline constexpr int64_t kInPlaceK = 1024;  // largest block of k of a panel that is used in place
inline constexpr int64_t kBlockRows = 512;  // rows for which a panel is packed once
inline constexpr int64_t kUnitRows = 64;    // the unit in which threads share the work of a panel
inline constexpr int kTileRows = 6;         // with 64 columns 24 vectors of 16 sums
using Sums = float[kPanel];                 // sums of one row

inline constexpr int64_t kPackedBytes = 128 << 10;  // bytes of a packed panel: a part of the L2 cache
template <class E>
inline constexpr int64_t kPackedK = kPackedBytes / (kPanel * int64_t(sizeof(E)));
// The memory that a thread writes: a packed panel, and sums of at most two products.
struct Scratch {
  alignas(64) std::byte panel[kPackedBytes];
  alignas(64) Sums sums[2][kBlockRows];
};

struct Size {
  int64_t rows, columns, k;
};

// Blocks of k are nearly equal, at most `most`, and even. Long ones are faster, because hardware prefetchers follow
// long rows.
inline int64_t BlockK(int64_t k, int64_t most) {
  const int64_t blocks = std::max<int64_t>(1, (k + most - 1) / most);
  return std::max<int64_t>(32, ((k + blocks - 1) / blocks + 31) / 32 * 32);
}

// Weights as a model stores them: contiguous in k for each column, or contiguous in columns for each k.
template <class T>
struct Weights {
  const T* At(int64_t column, int64_t from) const {
    return column_major ? data + from * stride + column : data + column * stride + from;
  }

  const T* data;
  int64_t stride;
  bool column_major;
};

// Packed panels, [columns / 64, k, 64], which hardware prefetchers follow.
template <class T>
struct InPlace {
  static constexpr int64_t kBlockK = kInPlaceK;
  const T* Panel(int, int64_t first, int64_t, int64_t from, int64_t, T*) const {
    return data + first * k + from * kPanel;
  }

  const T* data;
  int64_t k;
};

// The products of kParts weights with the same rows, whose elements are E.
//   x(row)                                        the start of a row
//   source.Panel(part, first, columns, from, size, buffer)     returns values [from, from + size) of k of a panel, in
//                                                 `buffer` or in place
//   add(x, tile, panel, columns, size, more, sums)      sums of tile <= kTileRows rows, added to the previous
//                                                 ones if `more`
//   store(row, first, columns, sums[0], sums[kParts - 1])      once for each row and panel
template <int kParts, class E, class X, class Source, class Add, class Store>
void Multiply(const lz_kernel_args* args, const Size& size, const X& x, const Source& source, const Add& add,
              const Store& store) {
  const int64_t block_k = BlockK(size.k, Source::kBlockK);
  const auto sum_part = [&](int part, int64_t first, int64_t columns, int64_t begin, int64_t end, E* buffer,
                            Sums* sums) {
    const int64_t tiles = (end - begin + kTileRows - 1) / kTileRows;
    for (int64_t from = 0; from < size.k || from == 0; from += block_k) {
      const int64_t depth = std::min(block_k, size.k - from);
      const E* w = source.Panel(part, first, columns, from, depth, buffer);
      for (int64_t tile = 0; tile < tiles; ++tile) {  // tiles of nearly equal numbers of rows
        const int64_t row = (end - begin) * tile / tiles, next = (end - begin) * (tile + 1) / tiles;
        const E* rows[kTileRows];
        for (int64_t r = row; r < next; ++r) rows[r - row] = x(begin + r) + from;
        add(rows, next - row, w, columns, depth, from > 0, sums + row);
      }
    }
  };
  const int64_t units = (size.rows + kUnitRows - 1) / kUnitRows, panels = (size.columns + kPanel - 1) / kPanel;
  constexpr int64_t kGrain = 64 * 4096;  // products: about 5 us
  const int64_t products = std::min(size.rows, kUnitRows) * size.k * kPanel * kParts;
  ParallelFor(args, panels * units, kGrain / (products + 1) + 1, [&](int64_t begin, int64_t end) {
    Scratch& scratch = ScratchOfThread<Scratch>();
    E* buffer = reinterpret_cast<E*>(scratch.panel);
    Sums(&sums)[2][kBlockRows] = scratch.sums;
    for (int64_t i = begin; i < end;) {
      const int64_t unit = i % units, count = std::min({kBlockRows / kUnitRows, units - unit, end - i});
      const int64_t first_row = size.rows * unit / units, last_row = size.rows * (unit + count) / units;
      const int64_t first = i / units * kPanel, columns = std::min(kPanel, size.columns - first);
      for (int part = 0; part < kParts; ++part) sum_part(part, first, columns, first_row, last_row, buffer, sums[part]);
      for (int64_t row = first_row; row < last_row; ++row)
        store(row, first, columns, sums[0][row - first_row], sums[kParts - 1][row - first_row]);
      i += count;
    }
  });
}

// Calls f(n) with n = std::integral_constant of `count`, 1 to kMax.
template <int kMax, class F>
void WithCount(int64_t count, const F& f) {
  if constexpr (kMax > 1) {
    if (count < kMax) return WithCount<kMax - 1>(count, f);
  }
  f(std::integral_constant<int, kMax>());
}

}  // namespace lz::panels
