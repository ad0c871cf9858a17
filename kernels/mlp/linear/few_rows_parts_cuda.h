// What products of few rows do with a stage of weights, rows of x and sums; few_rows_cuda.h puts them together.
// A Format has
//   kStageBytes, kStageValues  of a row in a stage; a stage has 16 rows
//   kExtraBytes                of shared memory for a stage's scales
//   kScaled                    false: codes are the weights
//   kOffsets                   weights are scale * code + offset, else scale * code
//   kHalfUnits                 scales may change every 16 values, else every 32
//   kNaturalPairs              Row returns values (0, 1), (2, 3) of a quad in pairs, else (0, 2), (1, 3)
//   Params, Format(params, column, last, lane)
//   Issue(stage, extra), Begin(stage)  begin a stage's copies of scales; prepare for what follows their arrival
//   Row<T>(codes, unit, t, pairs)      32 values are a unit; the lane gets the quads 4 t .. 4 t + 3 of its two halves
//   Ends(unit, half)                   whether a group ends there
//   Scales(codes of row g, of row g + 8, extra, unit, half)  that group's factors
//   At(params, weight row, j, i), Final(params, j)           a weight in FP64; a factor of the whole sum
#pragma once

#include "kernels/cuda_copy.h"
#include "kernels/mlp/linear/pairs_cuda.h"

namespace lz::few_rows {

inline constexpr int kMostRows = 16;
inline constexpr int kColumns = 16;  // of a warp's tile
inline constexpr int kUnit = 32;
inline constexpr int kStages = 4;
inline constexpr int kMostWarps = 16;
inline constexpr int64_t kWantedWarps = 2048;   // that fill a device
inline constexpr int kHalfShared = 112 * 1024;  // of a multiprocessor's shared memory

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

template <class F>
__device__ void IssueCodes(const uint8_t* weight, int64_t stride, int64_t row_bytes, int column, int last, int stage,
                           int lane, uint8_t* to) {
  using S = StageOf<F>;
  const int64_t from = int64_t(stage) * F::kStageBytes / 16 * 16;
#pragma unroll
  for (int i = 0; i < (kColumns * S::kChunks + kWarp - 1) / kWarp; ++i) {
    const int chunk = i * kWarp + lane, row = chunk / S::kChunks, of_row = chunk % S::kChunks;
    if (kColumns * S::kChunks % kWarp != 0 && chunk >= kColumns * S::kChunks) break;
    const int64_t at = from + of_row * 16, left = row_bytes - at;
    const int real = left >= 16 ? 16 : left > 0 ? int(left) : 0;
    const int j = column + row < last ? column + row : last;
    CopyAsync16(to + row * S::kRowBytes + of_row * 16, weight + j * stride + (real > 0 ? at : 0), real);
  }
}

// The four pairs of a lane for one unit and one row of x.
template <class F, class T>
__device__ void LoadInput(const T* row, int k, int size, uint32_t (&pairs)[4]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int at = k + 16 * half;
    uint2 v = {0, 0};
    if (row != nullptr && at < size) v = *reinterpret_cast<const uint2*>(row + at);
    pairs[2 * half] = F::kNaturalPairs ? v.x : Bytes(v.x, v.y, 0x5410);
    pairs[2 * half + 1] = F::kNaturalPairs ? v.y : Bytes(v.x, v.y, 0x7632);
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

// The rows of x that a lane multiplies. Those of a stage are loaded before its weights have arrived, if they fit
// the registers.
template <class T, class F, int kTiles>
struct Inputs {
  static constexpr bool kEarly = kTiles == 1;
  static constexpr int kHeld = kEarly ? StageOf<F>::kUnits : 1;
  const T* row[kTiles];
  int size;
  uint32_t held[kHeld][kTiles][4];

  __device__ Inputs(const Call<T>& call, int lane) : size(call.k) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const int m = 8 * tile + lane / 4;
      row[tile] = m < call.rows ? call.x + call.x_rows[m] + lane % 4 * 4 : nullptr;
    }
  }
  __device__ void Load(int first, int held_unit) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) LoadInput<F>(row[tile], first, size, held[held_unit][tile]);
  }
  __device__ void LoadStage(int stage) {
    if constexpr (kEarly) {
#pragma unroll
      for (int unit = 0; unit < kHeld; ++unit) Load(stage * F::kStageValues + unit * kUnit, unit);
    }
  }
  __device__ const uint32_t (&Unit(int stage, int unit))[kTiles][4] {
    if constexpr (!kEarly) Load(stage * F::kStageValues + unit * kUnit, 0);
    return held[kEarly ? unit : 0];
  }
};

#endif  // __CUDACC__

}  // namespace lz::few_rows
