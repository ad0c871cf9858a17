// Products of many rows of input with rows of weights: the input is packed in micro-panels with one row per lane, so
// that sums need no folding; weights become f32 one block at a time, and each is broadcast to a register tile of sums.
//   Source::Decode(row, from, size, out)   values [from, from + size) of a row of weights as f32; `out` has room for
//                                          kBlockK values, `from` is a multiple of it
// A sum goes over k in order, in blocks of kBlockK: it depends on neither the number of rows nor the partition. Include
// only from files that Highway compiles per target (after hwy/highway.h).
#if defined(LZ_KERNELS_GEMM_HWY_MICRO_PANELS_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LZ_KERNELS_GEMM_HWY_MICRO_PANELS_H_
#undef LZ_KERNELS_GEMM_HWY_MICRO_PANELS_H_
#else
#define LZ_KERNELS_GEMM_HWY_MICRO_PANELS_H_
#endif

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "hwy/highway.h"
#include "kernels/launch.h"
#include "kernels/simd.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE::micro_panels {

using DF = hn::ScalableTag<float>;
using Four = hn::FixedTag<float, 4>;  // transposed four by four

// Sums of a tile: kTileMicroPanels x kTileColumns fill the vector registers that loads do not need.
#if HWY_TARGET <= HWY_AVX3
constexpr int kTileMicroPanels = 2, kTileColumns = 12;
#elif HWY_TARGET == HWY_NEON
constexpr int kTileMicroPanels = 4, kTileColumns = 6;
#else
constexpr int kTileMicroPanels = 2, kTileColumns = 6;
#endif
constexpr int64_t kBlockK = 256;       // values of k: 8 to 32 KiB of a tile's micro-panels, 6 or 12 KiB of its weights
constexpr int64_t kBlockColumns = 24;  // the unit in which threads share the work
constexpr int64_t kGrain = 32768;      // products: a few us; less does not pay for waking another thread
constexpr int64_t kBlockRows = 192;    // rows of input that are packed at a time: 192 KiB of the L2 cache
using Panel = float[kBlockColumns][kBlockK];
using Sums = float[kBlockColumns][kBlockRows];
static_assert(kBlockColumns % kTileColumns == 0);

inline int64_t MicroPanelRows() { return int64_t(hn::Lanes(DF())); }
inline int64_t MicroPanels(int64_t rows) { return (rows + MicroPanelRows() - 1) / MicroPanelRows(); }
// Bytes of packed input; at most kBlockRows rows are packed at a time.
inline uint64_t PackedBytes(int64_t rows, int64_t k) {
  return uint64_t(MicroPanels(std::min(rows, kBlockRows)) * MicroPanelRows() * k) * sizeof(float);
}

// out[0 .. size) = x as f32.
template <class T>
void Widen(const T* x, int64_t size, float* out) {
  const DF d;
  int64_t i = 0;
  for (; i + int64_t(hn::Lanes(d)) <= size; i += int64_t(hn::Lanes(d))) hn::StoreU(LoadF32(d, x + i), d, out + i);
  for (; i < size; ++i) out[i] = ToFloat(x[i]);
}

// r[i] lane j <- r[j] lane i.
HWY_INLINE void Transpose(hn::Vec<Four>* r) {
  const Four d;
  const hn::Repartition<uint64_t, Four> d64;
  const auto ab = hn::BitCast(d64, hn::InterleaveLower(d, r[0], r[1]));
  const auto cd = hn::BitCast(d64, hn::InterleaveLower(d, r[2], r[3]));
  const auto ef = hn::BitCast(d64, hn::InterleaveUpper(d, r[0], r[1]));
  const auto gh = hn::BitCast(d64, hn::InterleaveUpper(d, r[2], r[3]));
  r[0] = hn::BitCast(d, hn::InterleaveLower(d64, ab, cd));
  r[1] = hn::BitCast(d, hn::InterleaveUpper(d64, ab, cd));
  r[2] = hn::BitCast(d, hn::InterleaveLower(d64, ef, gh));
  r[3] = hn::BitCast(d, hn::InterleaveUpper(d64, ef, gh));
}

// Packs one micro-panel of k columns, out[i][lane], from x's `rows` rows, with zeros in the lanes after them. `lanes`:
// a multiple of 4.
template <class T>
void PackMicroPanel(const T* const* x, int64_t rows, int64_t k, float* out, int64_t lanes = MicroPanelRows()) {
  const Four d;
  for (int64_t lane = 0; lane < lanes; lane += 4) {
    int64_t i = 0;
    if constexpr (std::is_same_v<T, BF16>) {  // in pairs, which are halves of f32
      const hn::Repartition<uint16_t, Four> d16;
      const hn::RebindToUnsigned<Four> d32;
      for (; i + 8 <= k; i += 8) {
        hn::Vec<Four> r[4];
        for (int64_t j = 0; j < 4; ++j)
          r[j] = lane + j < rows ? hn::BitCast(d, hn::LoadU(d16, &x[lane + j][i].bits)) : hn::Zero(d);
        Transpose(r);
        for (int64_t j = 0; j < 4; ++j) {
          const auto pairs = hn::BitCast(d32, r[j]);
          float* to = out + (i + 2 * j) * lanes + lane;
          hn::StoreU(hn::BitCast(d, hn::ShiftLeft<16>(pairs)), d, to);
          hn::StoreU(hn::BitCast(d, hn::And(pairs, hn::Set(d32, 0xffff0000u))), d, to + lanes);
        }
      }
    }
    for (; i + 4 <= k; i += 4) {
      hn::Vec<Four> r[4];
      for (int64_t j = 0; j < 4; ++j) r[j] = lane + j < rows ? LoadF32(d, x[lane + j] + i) : hn::Zero(d);
      Transpose(r);
      for (int64_t j = 0; j < 4; ++j) hn::StoreU(r[j], d, out + (i + j) * lanes + lane);
    }
    for (; i < k; ++i)
      for (int64_t j = lane; j < lane + 4; ++j) out[i * lanes + j] = j < rows ? ToFloat(x[j][i]) : 0.0f;
  }
}

// sums[c][lane of S micro_panels] (+)= the products of kTileColumns rows of a panel with S micro-panels at
// distances of `micro_panel_size`.
template <int S>
void Tile(const float* x, int64_t micro_panel_size, const float (*w)[kBlockK], int64_t size, bool add,
          float (*sums)[kBlockRows]) {
  const DF d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  hn::Vec<DF> acc[S][kTileColumns];
#pragma GCC unroll 16
  for (int s = 0; s < S; ++s)
#pragma GCC unroll 16
    for (int c = 0; c < kTileColumns; ++c) acc[s][c] = hn::Zero(d);
  for (int64_t i = 0; i < size; ++i, x += lanes) {
    hn::Vec<DF> xs[S];
#pragma GCC unroll 16
    for (int s = 0; s < S; ++s) xs[s] = hn::LoadU(d, x + s * micro_panel_size);
#pragma GCC unroll 16
    for (int c = 0; c < kTileColumns; ++c) {
      const auto ws = hn::Set(d, w[c][i]);
#pragma GCC unroll 16
      for (int s = 0; s < S; ++s) acc[s][c] = hn::MulAdd(xs[s], ws, acc[s][c]);
    }
  }
#pragma GCC unroll 16
  for (int c = 0; c < kTileColumns; ++c)
#pragma GCC unroll 16
    for (int s = 0; s < S; ++s) {
      float* to = sums[c] + s * lanes;
      hn::StoreU(add ? hn::Add(hn::LoadU(d, to), acc[s][c]) : acc[s][c], d, to);
    }
}

inline void RunTile(int64_t count, const float* x, int64_t micro_panel_size, const float (*w)[kBlockK], int64_t size,
                    bool add, float (*sums)[kBlockRows]) {
  switch (count) {
    case 1: return Tile<1>(x, micro_panel_size, w, size, add, sums);
    case 2: return Tile<2>(x, micro_panel_size, w, size, add, sums);
#if HWY_TARGET == HWY_NEON
    case 3: return Tile<3>(x, micro_panel_size, w, size, add, sums);
    default: return Tile<4>(x, micro_panel_size, w, size, add, sums);
#endif
  }
}

// sums[c][row] of `columns` columns from `first` on and all packed rows.
template <class Source>
void SumBlock(const Source& source, const float* packed, int64_t count, int64_t k, int64_t first, int64_t columns,
              Panel& panel, Sums& sums) {
  const int64_t lanes = MicroPanelRows(), micro_panel_size = k * lanes;
  const int64_t tiles = (columns + kTileColumns - 1) / kTileColumns;
  for (int64_t from = 0; from < k || from == 0; from += kBlockK) {
    const int64_t size = std::min(kBlockK, k - from);
    for (int64_t c = 0; c < tiles * kTileColumns; ++c)  // past the last column: the last one again
      source.Decode(first + std::min(c, columns - 1), from, size, panel[c]);
    for (int64_t micro_panel = 0; micro_panel < count; micro_panel += kTileMicroPanels) {
      const float* x = packed + micro_panel * micro_panel_size + from * lanes;
      for (int64_t c = 0; c < tiles * kTileColumns; c += kTileColumns) {
        RunTile(std::min<int64_t>(kTileMicroPanels, count - micro_panel), x, micro_panel_size, panel + c, size,
                from > 0, reinterpret_cast<float(*)[kBlockRows]>(sums[c] + micro_panel * lanes));
      }
    }
  }
}

// out[row][c] = sums[c][row] + bias[c], `rows` x `columns` from column `first` of `output` on.
template <class T>
void Store(const Sums& sums, const T* bias, int64_t columns, int64_t rows, const RowOffsets& offsets, int64_t row,
           T* out) {
  const Four d;
  for (int64_t r = 0; r < rows; r += 4) {
    const int64_t count = std::min<int64_t>(4, rows - r);
    T* to[4];
    for (int64_t j = 0; j < count; ++j) to[j] = out + offsets[row + r + j];
    int64_t c = 0;
    for (; c + 4 <= columns; c += 4) {
      hn::Vec<Four> v[4];
      for (int64_t j = 0; j < 4; ++j) v[j] = hn::LoadU(d, sums[c + j] + r);
      Transpose(v);
      const auto add = bias ? LoadF32(d, bias + c) : hn::Zero(d);
      for (int64_t j = 0; j < count; ++j) StoreF32(d, hn::Add(v[j], add), to[j] + c);
    }
    for (; c < columns; ++c)
      for (int64_t j = 0; j < count; ++j) FromFloat(sums[c][r + j] + (bias ? ToFloat(bias[c]) : 0.0f), to[j] + c);
  }
}

// output [..., n] = input [..., k] times the n rows of `source`, plus bias [n] if it is given. `args->workspace`:
// PackedBytes() bytes.
template <class T, class Source>
void Run(const lz_kernel_args* args, const lz_tensor& input, const Source& source, const lz_tensor& bias,
         const lz_tensor& output) {
  const int64_t rows = NumRows(output), n = output.shape[output.ndim - 1], k = input.shape[input.ndim - 1];
  const int64_t lanes = MicroPanelRows();
  const RowOffsets in(input), out(output);
  float* packed = static_cast<float*>(args->workspace);
  for (int64_t row = 0; row < rows; row += kBlockRows) {
    const int64_t count = std::min(kBlockRows, rows - row);
    ParallelFor(args, MicroPanels(count), 16384 / (k * lanes + 1) + 1, [&](int64_t begin, int64_t end) {
      for (int64_t micro_panel = begin; micro_panel < end; ++micro_panel) {
        const T* x[hn::MaxLanes(DF())];
        const int64_t own = std::min(lanes, count - micro_panel * lanes);
        for (int64_t j = 0; j < own; ++j) x[j] = Data<const T>(input) + in[row + micro_panel * lanes + j];
        PackMicroPanel(x, own, k, packed + micro_panel * lanes * k);
      }
    });
    const int64_t grain = kGrain / (kBlockColumns * count * (k + 16)) + 1;
    ParallelFor(args, (n + kBlockColumns - 1) / kBlockColumns, grain, [&](int64_t begin, int64_t end) {
      HWY_ALIGN Panel panel;
      HWY_ALIGN Sums sums;
      for (int64_t first = begin * kBlockColumns; first < std::min(end * kBlockColumns, n); first += kBlockColumns) {
        const int64_t columns = std::min(kBlockColumns, n - first);
        SumBlock(source, packed, MicroPanels(count), k, first, columns, panel, sums);
        Store(sums, Given(bias) ? Data<const T>(bias) + first : nullptr, columns, count, out, row,
              Data<T>(output) + first);
      }
    });
  }
}

}  // namespace lz::HWY_NAMESPACE::micro_panels
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
