// Many rows of input times weights that are stored by columns: blocks of weights become dense f32 and stay in a
// first-level cache for all strips of packed input, whose values are broadcast.
// Include inside HWY_NAMESPACE's file only.
#if defined(LZ_KERNELS_MLP_LINEAR_HWY_BY_COLUMNS_MANY_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LZ_KERNELS_MLP_LINEAR_HWY_BY_COLUMNS_MANY_H_
#undef LZ_KERNELS_MLP_LINEAR_HWY_BY_COLUMNS_MANY_H_
#else
#define LZ_KERNELS_MLP_LINEAR_HWY_BY_COLUMNS_MANY_H_
#endif

#include <algorithm>
#include <cstdint>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/mlp/linear/hwy_by_columns_few.h"

HWY_BEFORE_NAMESPACE();
namespace lz {
namespace HWY_NAMESPACE {
namespace by_columns {

// A tile of sums fills the vector registers but for what is loaded.
#if HWY_TARGET <= HWY_AVX3 || HWY_TARGET == HWY_NEON
constexpr int kTileRows = 8, kTileVectors = 3;
#else
constexpr int kTileRows = 4, kTileVectors = 3;
#endif
constexpr int64_t kTileColumns = kTileVectors * int64_t(hn::MaxLanes(DF()));
constexpr int64_t kBlockColumns = 48;  // the unit in which threads share many rows
constexpr int64_t kBlockK = 128;       // with kBlockColumns 24 KiB of weights in a first-level cache
constexpr int64_t kBlockRows = 192;    // with kBlockK 96 KiB of input in a second-level cache
static_assert(kBlockColumns % kTileColumns == 0 && kBlockRows % kTileRows == 0);

inline int64_t StripsOf(int64_t rows) { return (rows + kTileRows - 1) / kTileRows; }

// Floats of packed input, of at most kBlockRows rows at a time.
inline int64_t PackedSize(int64_t rows, int64_t k) {
  return rows <= kFewRows ? 0 : StripsOf(std::min(rows, kBlockRows)) * kTileRows * k;
}

// `size` values of k of `columns` outputs as panel[tile][i][kTileColumns]; outputs behind them are zero.
template <class T>
void PackPanel(const T* w, int64_t stride, int64_t size, int64_t columns, float* panel) {
  constexpr int64_t kAhead = 16;  // rows of weights: they are too far apart for a CPU to foresee
  const DF d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  for (int64_t i = 0; i < size; ++i) {
    const T* row = w + i * stride;
    for (int64_t c = 0; c < columns; c += lanes) {
      hwy::Prefetch(row + kAhead * stride + c);
      float* to = panel + (c / kTileColumns * size + i) * kTileColumns + c % kTileColumns;
      const bool whole = c + lanes <= columns;
      hn::StoreU(whole ? LoadF32(d, row + c) : LoadF32N(d, row + c, size_t(columns - c)), d, to);
    }
    for (int64_t c = (columns + lanes - 1) / lanes * lanes; c % kTileColumns != 0; c += lanes)
      hn::StoreU(hn::Zero(d), d, panel + (c / kTileColumns * size + i) * kTileColumns + c % kTileColumns);
  }
}

// sums[r][kTileColumns] (+)= the products of `size` values of R rows of a strip with a tile of the panel.
template <int R>
void Tile(const float* x, const float* w, int64_t size, bool add, float (*sums)[kBlockColumns]) {
  const DF d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  VF acc[R][kTileVectors];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kTileVectors; ++v) acc[r][v] = hn::Zero(d);
  for (int64_t i = 0; i < size; ++i, x += kTileRows, w += kTileColumns) {
    VF ws[kTileVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kTileVectors; ++v) ws[v] = hn::LoadU(d, w + v * lanes);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const VF xs = hn::Set(d, x[r]);
#pragma GCC unroll 8
      for (int v = 0; v < kTileVectors; ++v) acc[r][v] = hn::MulAdd(xs, ws[v], acc[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kTileVectors; ++v) {
      float* to = sums[r] + v * lanes;
      hn::StoreU(add ? hn::Add(hn::LoadU(d, to), acc[r][v]) : acc[r][v], d, to);
    }
}

inline void RunTile(int64_t rows, const float* x, const float* w, int64_t size, bool add,
                    float (*sums)[kBlockColumns]) {
  switch (rows) {
    case 1: return Tile<1>(x, w, size, add, sums);
    case 2: return Tile<2>(x, w, size, add, sums);
    case 3: return Tile<3>(x, w, size, add, sums);
    case 4: return Tile<4>(x, w, size, add, sums);
#if HWY_TARGET <= HWY_AVX3 || HWY_TARGET == HWY_NEON
    case 5: return Tile<5>(x, w, size, add, sums);
    case 6: return Tile<6>(x, w, size, add, sums);
    case 7: return Tile<7>(x, w, size, add, sums);
    case 8: return Tile<8>(x, w, size, add, sums);
#endif
  }
}

using Panel = float[kBlockK * kBlockColumns];

// sums[r][c] of outputs [first, first + columns), at most kBlockColumns, and all `rows` packed rows.
template <class T>
void SumMany(const Weight<T>& w, const float* packed, int64_t rows, int64_t first, int64_t columns, Panel& panel,
             float (*sums)[kBlockColumns]) {
  if (w.k == 0) std::fill_n(sums[0], rows * kBlockColumns, 0.0f);
  for (int64_t from = 0; from < w.k; from += kBlockK) {
    const int64_t size = std::min(kBlockK, w.k - from);
    PackPanel(w.data + from * w.stride + first, w.stride, size, columns, panel);
    for (int64_t row = 0; row < rows; row += kTileRows) {
      const float* x = packed + row * w.k + from * kTileRows;
      for (int64_t c = 0; c < columns; c += kTileColumns) {
        RunTile(std::min<int64_t>(kTileRows, rows - row), x, panel + c * size, size, from > 0,
                reinterpret_cast<float(*)[kBlockColumns]>(sums[row] + c));
      }
    }
  }
}

}  // namespace by_columns
}  // namespace HWY_NAMESPACE
}  // namespace lz
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
