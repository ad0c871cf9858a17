// The order in which the linear kernels iterate over a product of [rows, k] and [n, k]: blocks that stay in the caches
// around a register tile. The order of a sum depends on k and on the number of rows, not on n or the partition.
//   Tile::kColumns            columns of one tile
//   Tile::kMaxRows            rows of one tile, at most
//   Tile::template Run<M>     (x, w, k, prefetch, add, sums, stride): see hwy_tile.h
//   Tile::Store               (sums, bias, columns, out): adds the bias and rounds
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/gemm/prefetch.h"
#include "kernels/launch.h"
#include "ops/mlp/linear.h"

namespace lz::gemm {

constexpr int64_t kBlockRows = 48;      // rows of input: with kBlockBytes of each they fill a fifth of a 1 MiB cache
constexpr int64_t kBlockColumns = 32;   // columns of output: the unit in which threads share the work
constexpr int64_t kBlockBytes = 4096;   // bytes of each row of input and weight: ten rows in the L1 cache
constexpr int64_t kWholeBytes = 24576;  // bytes of input that is not divided into blocks of k: half the L1 cache
constexpr int64_t kGrainBytes = 65536;  // bytes of weights for one row: about 1 us; less does not pay for waking
                                        // another thread

constexpr int64_t kPrefetchBytes = 12288;  // prefetch distance of float weights; larger than for quantized ones
                                           // (design 0011)

// Size of the blocks of k: a multiple of 64 elements for all but the last, and nearly equal.
inline int64_t BlockK(int64_t k, int64_t element_bytes) {
  const int64_t blocks = std::max<int64_t>(1, (k * element_bytes + kBlockBytes - 1) / kBlockBytes);
  return std::max<int64_t>(1, ((k + blocks - 1) / blocks + 63) / 64 * 64);
}

template <class Tile, class T, class X>
void RunTile(int rows, const X* const* x, const T* const* w, int64_t k, int64_t prefetch, bool add, float* sums) {
  constexpr int64_t kStride = kBlockColumns;
  switch (rows) {
    case 1: return Tile::template Run<1>(x, w, k, prefetch, add, sums, kStride);
    case 2: return Tile::template Run<2>(x, w, k, prefetch, add, sums, kStride);
    case 3:
      if constexpr (Tile::kMaxRows >= 3) return Tile::template Run<3>(x, w, k, prefetch, add, sums, kStride);
      return;
    case 4:
      if constexpr (Tile::kMaxRows >= 4) return Tile::template Run<4>(x, w, k, prefetch, add, sums, kStride);
      return;
    case 5:
      if constexpr (Tile::kMaxRows >= 5) return Tile::template Run<5>(x, w, k, prefetch, add, sums, kStride);
      return;
    case 6:
      if constexpr (Tile::kMaxRows >= 6) return Tile::template Run<6>(x, w, k, prefetch, add, sums, kStride);
      return;
  }
}

// sums[rows][kBlockColumns] of `columns` columns from `first` on; x: the rows of input.
template <class Tile, class T, class X>
void SumBlock(const lz_tensor& weight, const X* const* x, int rows, int64_t first, int64_t columns, float* sums) {
  const int64_t k = weight.shape[1], stride = weight.strides[0];
  const int64_t prefetch = WholeTiles(kPrefetchBytes, Tile::kColumns * stride * int64_t(sizeof(T)));
  const int groups = (rows + Tile::kMaxRows - 1) / Tile::kMaxRows;
  // Weights that are used once are read in memory order, unless the input would not stay in the L1 cache.
  const bool whole = groups == 1 && rows * k * int64_t(sizeof(X)) <= kWholeBytes;
  const int64_t block = whole ? std::max<int64_t>(1, k) : BlockK(k, sizeof(X));
  for (int64_t from = 0; from < k || from == 0; from += block) {
    const int64_t size = std::min(block, k - from);
    for (int group = 0; group < groups; ++group) {  // groups of nearly equal numbers of rows
      const int begin = rows * group / groups, end = rows * (group + 1) / groups;
      const X* xs[Tile::kMaxRows];
      for (int m = begin; m < end; ++m) xs[m - begin] = x[m] + from;
      for (int64_t column = 0; column < columns; column += Tile::kColumns) {
        const T* ws[Tile::kColumns];  // the last tile may be narrower: it repeats the last column
        for (int64_t c = 0; c < Tile::kColumns; ++c)
          ws[c] = Data<const T>(weight) + (first + std::min(column + c, columns - 1)) * stride + from;
        RunTile<Tile>(end - begin, xs, ws, size, prefetch, from > 0, sums + begin * kBlockColumns + column);
      }
    }
  }
}

// Output columns [first, first + columns), at most kBlockColumns, of all rows.
template <class Tile, class T>
void RunColumns(const lz_kernel_args* args, int64_t first, int64_t columns) {
  using namespace lz::ops::mlp_linear;
  const lz_tensor& output = args->tensors[kOutput];
  const lz_tensor& bias = args->tensors[kBias];
  const T* pbias = Given(bias) ? Data<const T>(bias) + first : nullptr;
  const int64_t rows = NumRows(output);
  float sums[kBlockRows * kBlockColumns];
  for (int64_t row = 0; row < rows; row += kBlockRows) {
    const int count = int(std::min(kBlockRows, rows - row));
    const T* x[kBlockRows];
    for (int m = 0; m < count; ++m)
      x[m] = Data<const T>(args->tensors[kInput]) + RowOffset(args->tensors[kInput], row + m);
    SumBlock<Tile, T>(args->tensors[kWeight], x, count, first, columns, sums);
    for (int m = 0; m < count; ++m)
      Tile::Store(sums + m * kBlockColumns, pbias, columns, Data<T>(output) + RowOffset(output, row + m) + first);
  }
}

template <class Tile, class T>
void RunAll(const lz_kernel_args* args) {
  using namespace lz::ops::mlp_linear;
  const int64_t n = args->tensors[kWeight].shape[0], k = args->tensors[kWeight].shape[1];
  const int64_t blocks = (n + kBlockColumns - 1) / kBlockColumns;
  const int64_t work =
      kBlockColumns * (k + 16) * int64_t(sizeof(T)) * std::max<int64_t>(1, NumRows(args->tensors[kOutput]) / 2);
  ParallelFor(args, blocks, kGrainBytes / work + 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block)
      RunColumns<Tile, T>(args, block * kBlockColumns, std::min(kBlockColumns, n - block * kBlockColumns));
  });
}

}  // namespace lz::gemm
