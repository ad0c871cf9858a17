// What products of few rows do with a stage of weights, rows of x and sums; few_rows_cuda.h puts them together.
// A Format has
//   kStageBytes, kStageValues  of a row in a stage; a stage has 16 rows
//   kStages                    of a warp, if they are not 3
//   kExtraBytes                of shared memory for a stage's scales
//   kScaled                    false: codes are the weights
//   kOffsets                   weights are scale * code + offset, else scale * code
//   kHalfUnits                 scales may change every 16 values, else every 32
//   kOrder                     which of 32 values, a unit, a lane gets, and in what pairs
//   Params, Format(params, column, last, lane)
//   kPrepared, kFactorsBytes           Prepare<every>(codes, extra, factors) makes factors of what has arrived
//   Issue(stage, extra), Begin(stage)  begin a stage's copies of scales; load what is read from global memory
//   Row<T>(codes, unit, t, pairs)      the lane's four pairs of a unit
//   kOften, Every()                    true, or how many units share a factor: 1, 4 or all of a stage
//   Scales<every>(codes of row g, of row g + 8, factors, unit, half)  the factors of what ends there
//   At(params, weight row, j, i), Final(params, j)           a weight in FP64; a factor of the whole sum
#pragma once

#include "kernels/cuda_copy.h"
#include "kernels/dependent_cuda.h"
#include "kernels/gemm/pairs_cuda.h"

namespace lz::few_rows {

inline constexpr int kMostRows = 16;
inline constexpr int kColumns = 16;  // of a warp's tile
inline constexpr int kUnit = 32;
inline constexpr int kStages = 3;
inline constexpr int kMostWarps = 16;
inline constexpr int64_t kWantedWarps = 2048;   // that fill a device
inline constexpr int kHalfShared = 112 * 1024;  // of a multiprocessor's shared memory
inline constexpr int64_t kFetched = 16 << 20;   // bytes of a call: what arrives while the kernels before it end

// Lane t of four gets of 32 values
enum class Order : uint8_t {
  kNatural,  // 4 t to 4 t + 3 of each half, in pairs (0, 1), (2, 3)
  kQuads,    // the same, in pairs (0, 2), (1, 3)
  kOctets,   // 8 t to 8 t + 7, in pairs (0, 4), (1, 5), (2, 6), (3, 7)
};

template <class T>
struct Call {
  const T* x;
  DeviceRows x_rows;
  const uint8_t* weight;
  int64_t weight_stride, row_bytes;
  const T* bias;
  int64_t bias_stride;
  T* out;  // contiguous
  int32_t rows, n, k;
  int32_t parts_log2;  // warps of a tile
  uint32_t fetched;    // bytes of each weight row that are brought into the second-level cache before x is there
};

// Factors of rows g and g + 8 of a tile.
struct Factors {
  float scale[2], offset[2];
};

#ifdef __CUDACC__
template <class F>
struct StageOf {
  // A stage that does not begin at a multiple of 16 bytes comes with what is around it.
  static constexpr int kChunks = F::kStageBytes % 16 == 0 ? F::kStageBytes / 16 : (F::kStageBytes + 29) / 16;
  static constexpr int kRowBytes = (kChunks | 1) * 16;  // an odd number of chunks: 8 rows are in different banks
  static constexpr int kCodes = kColumns * kRowBytes, kBytes = kCodes + F::kExtraBytes;
  static constexpr int kStages = [] {
    if constexpr (requires { F::kStages; }) return F::kStages;
    return few_rows::kStages;
  }();
  static constexpr int kPipeline = (kStages * kBytes + F::kFactorsBytes + 15) / 16 * 16;  // of a warp
  static constexpr int kUnits = F::kStageValues / kUnit;
};

// As CopyAsync16, of 4 bytes; both addresses are multiples of 4.
__device__ inline void CopyAsync4(void* shared, const void* global, int real_bytes) {
#ifdef LZ_CUDA_EMULATED
  emulation::CopyLater(shared, global, 4, size_t(real_bytes));
#else
  const auto at = uint32_t(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(at), "l"(global), "r"(real_bytes) : "memory");
#endif
}

// The weights of a tile of columns: what a lane copies of each stage.
template <class F>
struct Source {
  using S = StageOf<F>;
  static constexpr int kCopies = (kColumns * S::kChunks + kWarp - 1) / kWarp;
  const uint8_t* tile;
  int64_t row_bytes;
  int lane;
  uint32_t rows[kCopies];  // bytes from the tile's first row to that of each copy

  template <class T>
  __device__ Source(const Call<T>& call, int column, int lane_)
      : tile(call.weight + column * call.weight_stride), row_bytes(call.row_bytes), lane(lane_) {
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int row = (i * kWarp + lane) / S::kChunks, most = call.n - 1 - column;
      rows[i] = uint32_t(row < most ? row : most) * uint32_t(call.weight_stride);
    }
  }
  __device__ void Issue(int stage, uint8_t* to) const {
    const int64_t from = int64_t(stage) * F::kStageBytes / 16 * 16;
    if (from + S::kChunks * 16 <= row_bytes) {
      Copy<true>(from, to);
    } else {
      Copy<false>(from, to);
    }
  }
  // kWhole: no byte is past the row's end. A copy of fewer bytes takes some 20 instructions.
  template <bool kWhole>
  __device__ void Copy(int64_t from, uint8_t* to) const {
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int chunk = i * kWarp + lane, row = chunk / S::kChunks, of_row = chunk % S::kChunks;
      if (kColumns * S::kChunks % kWarp != 0 && chunk >= kColumns * S::kChunks) break;
      uint8_t* const at = to + row * S::kRowBytes + of_row * 16;
      const uint8_t* const begin = tile + rows[i];
      if constexpr (kWhole) {
        CopyAsync16(at, begin + from + of_row * 16);
      } else {
        const int64_t left = row_bytes - from - of_row * 16;
        const int real = left >= 16 ? 16 : left > 0 ? int(left) : 0;
        CopyAsync16(at, begin + (real > 0 ? from + of_row * 16 : 0), real);
      }
    }
  }
};

// What a lane needs of one unit and one row of x, which begins with the lane's values. kWhole: all are there.
template <Order kOrder, bool kWhole, class T>
__device__ void LoadInput(const T* row, int k, int size, uint32_t (&v)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) v[i] = 0;
  if constexpr (kOrder == Order::kOctets) {
    if (kWhole || k < size) *reinterpret_cast<uint4*>(v) = *reinterpret_cast<const uint4*>(row + k);
  } else {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (!kWhole && k + 16 * half >= size) continue;
      *reinterpret_cast<uint2*>(v + 2 * half) = *reinterpret_cast<const uint2*>(row + k + 16 * half);
    }
  }
}
// As four pairs in the order of the weights'; `pairs` may be `loaded`.
template <Order kOrder>
__device__ void ToPairs(const uint32_t (&loaded)[4], uint32_t (&pairs)[4]) {
  const uint32_t v[4] = {loaded[0], loaded[1], loaded[2], loaded[3]};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint32_t low = v[kOrder == Order::kOctets ? half : 2 * half];
    const uint32_t high = v[kOrder == Order::kOctets ? 2 + half : 2 * half + 1];
    pairs[2 * half] = kOrder == Order::kNatural ? low : Bytes(low, high, 0x5410);
    pairs[2 * half + 1] = kOrder == Order::kNatural ? high : Bytes(low, high, 0x7632);
  }
}

// Sums of tiles of 8 rows, as Multiply has them. One tile has a chain of sums for each half of a unit, for a product
// waits for the one before in its chain.
template <class T, class F, int kTiles>
struct Sums {
  static constexpr int kChains = kTiles == 1 ? 2 : 1;
  float total[kTiles][4] = {}, group[kTiles][kChains][4] = {}, inputs[kTiles][4] = {};

  __device__ void Add(const uint32_t (&low)[4], const uint32_t (&high)[4], const uint32_t (&x)[kTiles][4], int half) {
    const uint32_t a[4] = {low[2 * half], high[2 * half], low[2 * half + 1], high[2 * half + 1]};
    const uint32_t one = PackPair<T>(1.0f, 1.0f), ones[4] = {one, one, one, one};
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      Multiply<T>(group[tile][half % kChains], a, x[tile][2 * half], x[tile][2 * half + 1]);
      if constexpr (F::kOffsets) Multiply<T>(inputs[tile], ones, x[tile][2 * half], x[tile][2 * half + 1]);
    }
  }
  __device__ void End(const Factors& by) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        total[tile][i] += by.scale[i / 2] * (group[tile][0][i] + (kChains == 1 ? 0.0f : group[tile][kChains - 1][i]));
        if constexpr (F::kOffsets) total[tile][i] += by.offset[i / 2] * inputs[tile][i];
#pragma unroll
        for (auto& chain : group[tile]) chain[i] = 0;
        inputs[tile][i] = 0;
      }
    }
  }
};

// The rows of x that a lane multiplies; where there are fewer than 8, the last one again, whose sums nobody reads.
// Those of a stage are loaded before its weights have arrived if they fit the registers, else those of its first unit,
// and of each further one while the unit before is multiplied: left to the compiler, FP8 waited for each.
template <class T, class F, int kTiles>
struct Inputs {
  static constexpr bool kEarly = kTiles == 1 || !F::kScaled;
  static constexpr int kOf = F::kOrder == Order::kOctets ? 8 : 4;  // values of a lane in a row
  static constexpr int kUnits = StageOf<F>::kUnits, kHeld = kEarly ? kUnits : 2;
  const T* row[kTiles];
  int size;                                     // of rows, from the lane's octet on
  alignas(16) uint32_t held[kHeld][kTiles][4];  // pairs, or what becomes pairs when it is used
  uint32_t pairs[kTiles][4];

  __device__ Inputs(const Call<T>& call, int lane) : size(call.k - (kOf == 8 ? lane % 4 * kOf : 0)) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const int m = 8 * tile + lane / 4;
      row[tile] = call.x + call.x_rows[m < call.rows ? m : call.rows - 1] + lane % 4 * kOf;
    }
  }
  template <bool kWhole>
  __device__ void Load(int first, int held_unit) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      uint32_t(&to)[4] = held[held_unit][tile];
      LoadInput<F::kOrder, kWhole>(row[tile], first, size, to);
      if constexpr (kEarly) ToPairs<F::kOrder>(to, to);
    }
  }
  template <bool kWhole>
  __device__ void LoadUnits(int first) {
#pragma unroll
    for (int unit = 0; unit < kHeld; ++unit) Load<kWhole>(first + unit * kUnit, unit);
  }
  __device__ void LoadStage(int stage) {
    const int first = stage * F::kStageValues;
    if constexpr (!kEarly) {
      Load<false>(first, 0);
    } else {
      if (first + F::kStageValues <= size) {
        LoadUnits<true>(first);
      } else {
        LoadUnits<false>(first);
      }
    }
  }
  __device__ const uint32_t (&Unit(int stage, int unit))[kTiles][4] {
    if constexpr (kEarly) return held[unit];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) ToPairs<F::kOrder>(held[unit % kHeld][tile], pairs[tile]);
    if (unit + 1 < kUnits) Load<false>(stage * F::kStageValues + (unit + 1) * kUnit, (unit + 1) % kHeld);
    return pairs;
  }
};

#endif  // __CUDACC__

}  // namespace lz::few_rows
