// Panels of f32, or of bf16 in pairs, times tiles of rows in FP32; and the packing of row-major or column-major weights
// into panels. A packed panel is [tiles][size][kTileColumns] f32, with zeros past its columns. Include only from files
// that Highway compiles per target.
#if defined(LZ_KERNELS_GEMM_HWY_PANEL_TILE_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LZ_KERNELS_GEMM_HWY_PANEL_TILE_H_
#undef LZ_KERNELS_GEMM_HWY_PANEL_TILE_H_
#else
#define LZ_KERNELS_GEMM_HWY_PANEL_TILE_H_
#endif

#include <algorithm>
#include <cstdint>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/gemm/hwy_micro_panels.h"
#include "kernels/gemm/panel_blocking.h"
#include "kernels/launch.h"
#include "kernels/rows.h"
#include "kernels/simd.h"
#if HWY_ARCH_X86_64
#include "kernels/gemm/x86_pack.h"
#endif

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE::panel_tiles {
using panels::kPanel;
using panels::kTileRows;
using panels::Sums;

using DF = hn::CappedTag<float, 16>;
using VF = hn::Vec<DF>;
// With kTileRows rows, sums fill the registers.
#if HWY_TARGET <= HWY_AVX3 || HWY_TARGET == HWY_NEON
constexpr int kVectors = 4;
#else
constexpr int kVectors = 2;
#endif
constexpr int64_t kTileColumns = kVectors * int64_t(hn::MaxLanes(DF()));
static_assert(kPanel % kTileColumns == 0);

// One value of k for V vectors of columns; for bf16 two, where the even ones are the high halves of lanes.
template <int R, int V>
HWY_INLINE void Step(const float* const* x, const float* w, int64_t i, VF (*acc)[V]) {
  VF ws[V];
#pragma GCC unroll 8
  for (int v = 0; v < V; ++v) ws[v] = hn::LoadU(DF(), w + v * hn::Lanes(DF()));
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const VF xs = hn::Set(DF(), x[r][i]);
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) acc[r][v] = hn::MulAdd(xs, ws[v], acc[r][v]);
  }
}
template <int R, int V>
HWY_INLINE void Step(const BF16* const* x, const BF16* w, int64_t i, VF (*acc)[V]) {
  const hn::RebindToUnsigned<DF> d32;
  const hn::Repartition<uint16_t, DF> d16;
#pragma GCC unroll 8
  for (int half = 0; half < 2; ++half) {
    VF ws[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      const auto pairs = hn::BitCast(d32, hn::LoadU(d16, &w[v * hn::Lanes(d16)].bits));
      ws[v] = hn::BitCast(DF(), half == 0 ? hn::ShiftLeft<16>(pairs) : hn::And(pairs, hn::Set(d32, 0xffff0000u)));
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const VF xs = hn::Set(DF(), ToFloat(x[r][i + half]));
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) acc[r][v] = hn::MulAdd(xs, ws[v], acc[r][v]);
    }
  }
}

// sums[r][V vectors] (+)= the products of R rows with `size` values of k, at distances of `stride` columns.
template <int R, int V, class T>
HWY_NOINLINE void AddTile(const T* const* x, const T* w, int64_t stride, int64_t size, bool more, Sums* sums) {
  constexpr int kStep = sizeof(T) == 2 ? 2 : 1;  // values of k
  const int64_t lanes = int64_t(hn::Lanes(DF()));
  const T* xs[R];
  for (int r = 0; r < R; ++r) xs[r] = x[r];
  VF acc[R][V];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) acc[r][v] = more ? hn::LoadU(DF(), sums[r] + v * lanes) : hn::Zero(DF());
  for (int64_t i = 0; i < size; i += kStep, w += kStep * stride) Step<R, V>(xs, w, i, acc);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) hn::StoreU(acc[r][v], DF(), sums[r] + v * lanes);
}

// The sums of `tile` rows and `columns` columns of a panel, with distances of `stride` columns between values of k and
// of `next` elements between tiles.
template <class T>
void AddPanel(const T* const* x, int64_t tile, const T* w, int64_t stride, int64_t next, int64_t columns, int64_t size,
              bool more, Sums* sums) {
  const int64_t lanes = int64_t(hn::Lanes(DF()));
  for (int64_t column = 0; column < columns; column += kTileColumns, w += next) {
    const int64_t vectors = (std::min(kTileColumns, columns - column) + lanes - 1) / lanes;
    Sums* const to = reinterpret_cast<Sums*>(sums[0] + column);
    panels::WithCount<kTileRows>(tile, [&](auto rows) {
      panels::WithCount<kVectors>(vectors, [&](auto v) { AddTile<rows(), v()>(x, w, stride, size, more, to); });
    });
  }
}

// Row-major weights: contiguous in k for each column.
template <class T>
void PackRows(const T* w, int64_t stride, int64_t columns, int64_t size, float* out) {
  const T* rows[kPanel];
  for (int64_t c = 0; c < columns; ++c) rows[c] = w + c * stride;
#if HWY_TARGET <= HWY_AVX3
  constexpr int64_t kWide = 128;  // values of a row that are converted to f32 before the transpose
  HWY_ALIGN float wide[x86::kMicroPanel][kWide];
  const auto pack = [&](const float* const* from, int64_t count, int64_t depth, float* to, int64_t prefetch) {
    const uint16_t* halves[x86::kMicroPanel];  // a value is a pair of them
    for (int64_t r = 0; r < count; ++r) halves[r] = reinterpret_cast<const uint16_t*>(from[r]);
    x86::PackMicroPanel(halves, count, 2 * depth, reinterpret_cast<uint32_t*>(to), kPanel, 2 * prefetch);
  };
  for (int64_t c = 0; c < columns; c += x86::kMicroPanel) {
    const int64_t count = std::min(x86::kMicroPanel, columns - c);
    if constexpr (std::is_same_v<T, float>) {
      pack(rows + c, count, size, out + c, x86::kMicroPanel * stride);
    } else {
      for (int64_t i = 0; i < size; i += kWide) {
        const float* from[x86::kMicroPanel];
        const int64_t depth = std::min(kWide, size - i);
        for (int64_t r = 0; r < count; ++r) micro_panels::Widen(rows[c + r] + i, depth, wide[r]), from[r] = wide[r];
        pack(from, count, depth, out + i * kPanel + c, 0);
      }
    }
  }
#else
  for (int64_t c = 0; c < columns; c += kTileColumns)
    micro_panels::PackMicroPanel(rows + c, std::min(kTileColumns, columns - c), size, out + c * size, kTileColumns);
#endif
}

// Column-major weights: contiguous in columns for each k.
template <class T>
void PackColumns(const T* w, int64_t stride, int64_t columns, int64_t size, float* out) {
  constexpr int64_t kPrefetchRows = 16;  // prefetch distance in rows of weights: they are too far apart for
                                         // hardware prefetchers
  const DF d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  for (int64_t i = 0; i < size; ++i) {
    const T* row = w + i * stride;
    for (int64_t c = 0; c < columns; c += lanes) {
      hwy::Prefetch(row + kPrefetchRows * stride + c);
      float* to = out + (c / kTileColumns * size + i) * kTileColumns + c % kTileColumns;
      const bool whole = c + lanes <= columns;
      hn::StoreU(whole ? LoadF32(d, row + c) : LoadF32N(d, row + c, size_t(columns - c)), d, to);
    }
  }
}

constexpr int64_t kWideRows = 512;  // rows of input that are converted to f32 at a time

// Floats for the input as f32, if it is of T.
template <class T>
int64_t WideSize(int64_t rows, int64_t k) {
  return std::is_same_v<T, float> ? 0 : std::min(rows, kWideRows) * k;
}

template <class T>
struct Packed {
  static constexpr int64_t kBlockK = panels::kPackedK<float>;
  float* Panel(int part, int64_t first, int64_t columns, int64_t from, int64_t size, float* buffer) const {
    const panels::Weights<T>& w = weights[part];
    const auto pack = w.column_major ? &PackColumns<T> : &PackRows<T>;
    pack(w.At(first, from), w.stride, columns, size, buffer);
    return buffer;
  }
  const panels::Weights<T>* weights;
};

// Products of rows x(row) of X with kParts weights; store: see panels::Multiply. `wide`: WideSize() floats.
template <int kParts, class X, class T, class Rows, class Store>
void Multiply(const lz_kernel_args* args, const panels::Size& size, const Rows& x, const panels::Weights<T>* weights,
              float* wide, const Store& store) {
  const Packed<T> packed = {weights};
  const auto add = [](const float* const* rows, int64_t tile, const float* w, int64_t columns, int64_t depth, bool more,
                      Sums* sums) {
    AddPanel(rows, tile, w, kTileColumns, kTileColumns * depth, columns, depth, more, sums);
  };
  if constexpr (std::is_same_v<X, float>) {
    panels::Multiply<kParts, float>(args, size, x, packed, add, store);
  } else {
    for (int64_t row = 0; row < size.rows; row += kWideRows) {
      const panels::Size block = {std::min(kWideRows, size.rows - row), size.columns, size.k};
      ParallelFor(args, block.rows, 16384 / (size.k + 1) + 1, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) micro_panels::Widen(x(row + r), size.k, wide + r * size.k);
      });
      panels::Multiply<kParts, float>(
          args, block, [&](int64_t r) { return wide + r * size.k; }, packed, add,
          [&](int64_t r, int64_t first, int64_t columns, const float* sums, const float* others) {
            store(row + r, first, columns, sums, others);
          });
    }
  }
}

// out = sums + bias; bias may be null.
template <class T>
void Store(const float* sums, const T* bias, int64_t columns, T* out) {
  if (bias) {
    MapRow(
        out, columns, [](auto, auto sum, auto b) HWY_ATTR { return hn::Add(sum, b); }, sums, bias);
  } else {
    MapRow(
        out, columns, [](auto, auto sum) HWY_ATTR { return sum; }, sums);
  }
}

}  // namespace lz::HWY_NAMESPACE::panel_tiles
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
