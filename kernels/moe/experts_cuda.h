// Products of rows with the weights of their experts on CUDA: what the kernels of expert_tiles_cuda.h and
// expert_sums_cuda.h share. Rows of an expert follow one another; how many there are is on the device alone, so a grid
// has as many tiles as there can be, and each finds its own. What becomes of the sums is an End:
//   kClears                            rows of no expert are cleared
//   kScaled                            hidden rows of float16 with a factor for each row and 64 columns
//   Row Of(product, row)               what it needs of a row; rows are counted in the order of their experts
//   Value(product, row, expert, column, sums of both sides)
//   Store(row, column, low, high, both)     two columns, or the first alone
#pragma once

#include "kernels/activation/functions_cuda.h"
#include "kernels/cuda_types.h"

namespace lz::experts {

inline constexpr int kBlockColumns = 64;  // of the output, and of x at once

// weight[e, j, i] and bias[e, j]; strides in elements.
struct Side {
  const void* weight = nullptr;
  int64_t expert = 0, row = 0, column = 1;
  const void* bias = nullptr;
  int64_t bias_expert = 0, bias_row = 1;
};

// sums[r, j] = sum_i weight[e, j, i] x[r, i] for the rows r of expert e, of one weight or two.
struct Product {
  const void* x = nullptr;
  DeviceRows x_rows;
  int64_t x_column = 1;
  const float* x_scales = nullptr;  // [rows, blocks of 64 columns]: factors of x
  const int32_t* order = nullptr;   // row r is row order[r] / per_token of x; nullptr: row r
  int32_t per_token = 1;
  const void* offsets = nullptr;  // [experts + 1]
  bool wide_offsets = false;
  int64_t offsets_stride = 1;
  int64_t rows = 0;
  int32_t experts = 0, n = 0, k = 0;
  Side side[2];
};

inline Side SideOf(const lz_tensor& weight, const lz_tensor& bias) {
  Side s = {
      .weight = Data<void>(weight), .expert = weight.strides[0], .row = weight.strides[1], .column = weight.strides[2]};
  if (Given(bias)) s.bias = Data<void>(bias), s.bias_expert = bias.strides[0], s.bias_row = bias.strides[1];
  return s;
}

// The most tiles of `rows_of_tile` rows that the experts' rows make.
inline int64_t MostTiles(const Product& p, int64_t rows_of_tile, bool clears) {
  const int64_t with_rows = p.experts < p.rows ? p.experts : p.rows;
  return p.rows / rows_of_tile + with_rows + (clears ? 2 : 0);
}
inline int64_t MeanRows(const Product& p) {
  const int64_t with_rows = p.experts < p.rows ? p.experts : p.rows;
  return with_rows > 0 ? p.rows / with_rows : 0;
}

#ifdef __CUDACC__
// Rows of a tile; of expert `experts` and the next: rows of none.
struct Work {
  int32_t expert = 0;
  int64_t begin = 0, end = 0;
};

// All rows of an expert; before the first and after the last one if `expert` is past them. Limited to the tensor,
// whatever the offsets are.
template <bool kClears>
__device__ Work RowsOf(const Product& p, int32_t expert) {
  const auto offset = [&](int32_t e) {
    const int64_t at = LoadIndex(p.offsets, e * p.offsets_stride, p.wide_offsets);
    return at < 0 ? 0 : at > p.rows ? p.rows : at;
  };
  Work work = {.expert = expert};
  if (expert < p.experts) {
    work.begin = offset(expert), work.end = offset(expert + 1);
  } else if (kClears && expert == p.experts) {
    work.end = offset(0);
  } else if (kClears && expert == p.experts + 1) {
    work.begin = offset(p.experts), work.end = p.rows;
  }
  if (work.end < work.begin) work.end = work.begin;
  return work;
}

__device__ inline int64_t SumUpToLane(int64_t v) {
  const int lane = int(threadIdx.x) % kWarp;
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const int64_t other = __shfl_up_sync(0xffffffffu, v, unsigned(step));
    v += lane >= step ? other : 0;
  }
  return v;
}

// The tile'th tile of kRows rows. Called by whole warps, whose lanes are threadIdx.x. False after the last.
template <int kRows, bool kClears>
__device__ bool FindWork(const Product& p, int64_t tile, Work* work) {
  const int lane = int(threadIdx.x) % kWarp, last = p.experts + (kClears ? 2 : 0);
  for (int from = 0; from < last; from += kWarp) {
    Work mine;
    if (from + lane < last) mine = RowsOf<kClears>(p, from + lane);
    const int64_t tiles = (mine.end - mine.begin + kRows - 1) / kRows, to = SumUpToLane(tiles);
    const unsigned later = __ballot_sync(0xffffffffu, tile < to);
    if (later == 0) {
      tile -= __shfl_sync(0xffffffffu, to, kWarp - 1);
      continue;
    }
    const int found = __ffs(int(later)) - 1;
    const int64_t before = __shfl_sync(0xffffffffu, to - tiles, found);
    work->expert = from + found;
    work->begin = __shfl_sync(0xffffffffu, mine.begin, found) + (tile - before) * kRows;
    work->end = __shfl_sync(0xffffffffu, mine.end, found);
    if (work->end > work->begin + kRows) work->end = work->begin + kRows;
    return true;
  }
  return false;
}

__device__ inline int64_t PlaceOf(const Product& p, int64_t row) {
  return p.x_rows[p.order ? p.order[row] / p.per_token : row];
}

template <class T>
__device__ float BiasOf(const Side& s, int32_t expert, int column) {
  return s.bias ? ToFloat(static_cast<const T*>(s.bias)[expert * s.bias_expert + column * s.bias_row]) : 0.0f;
}

// Two elements at once where `pairs` says that addresses allow it.
template <class T>
__device__ void StorePair(T* to, float low, float high, bool both, bool pairs) {
  if (both && pairs) {
    *reinterpret_cast<Vector<T, 2>*>(to) = {FromFloat<T>(low), FromFloat<T>(high)};
    return;
  }
  to[0] = FromFloat<T>(low);
  if (both) to[1] = FromFloat<T>(high);
}

// Weights of the chosen experts, by the number of the choice; 1 without.
struct ChoiceWeights {
  const void* data = nullptr;
  DType type = DType::kF32;
  DeviceRows at;
  __device__ float operator()(int64_t choice) const { return data ? LoadFloating(data, at[choice], type) : 1.0f; }
};

// Rows of the output; rows of no expert become 0.
template <class T>
struct ToOutput {
  static constexpr bool kClears = true, kScaled = false;
  T* out;  // contiguous
  bool pairs;
  struct Row {
    int64_t at;
  };
  __device__ Row Of(const Product& p, int64_t row) const { return {row * p.n}; }
  __device__ float Value(const Product& p, const Row&, int32_t expert, int column, float sum, float) const {
    return sum + BiasOf<T>(p.side[0], expert, column);
  }
  __device__ void Store(const Row& row, int column, float low, float high, bool both) const {
    StorePair(out + row.at + column, low, high, both, pairs);
  }
};

// One copy of the functions in a kernel: inlined, each of a thread's sums would have all of them, and their compilation
// would take minutes.
static __device__ __attribute__((noinline)) float Activated(Activation f, float x) { return f(x); }

// Hidden rows [rows, n] of gate and up, or of one projection, in H; weights of the choices that multiply x.
template <class T, class H>
struct ToHidden {
  static constexpr bool kClears = false, kScaled = std::is_same_v<H, __half>;
  H* hidden;
  float* scales;  // with kScaled: [rows, blocks of 64 columns]
  bool pairs, gated;
  ChoiceWeights weights;
  Activation activation;
  float limit, up_offset;  // limit: infinity where there is none
  struct Row {
    int64_t at;
    float weight;
  };
  __device__ Row Of(const Product& p, int64_t row) const {
    return {row * p.n, weights.data && p.k > 0 ? weights(p.order[row]) : 1.0f};
  }
  __device__ float Value(const Product& p, const Row& row, int32_t expert, int column, float gate, float up) const {
    gate = row.weight * gate + BiasOf<T>(p.side[0], expert, column);
    gate = gate > limit ? limit : gate;
    if (!gated) return Activated(activation, gate);
    up = row.weight * up + BiasOf<T>(p.side[1], expert, column);
    up = up > limit ? limit : up < -limit ? -limit : up;
    return Activated(activation, gate) * (up + up_offset);
  }
  __device__ void Store(const Row& row, int column, float low, float high, bool both) const {
    StorePair(hidden + row.at + column, low, high, both, pairs);
  }
};

// Results of the choices, [tokens * choices of each, n], times their weights.
template <class T>
struct ToChoices {
  static constexpr bool kClears = false, kScaled = false;
  float* out;
  bool pairs;
  const int32_t* order;
  ChoiceWeights weights;
  struct Row {
    int64_t at;
    float weight;
  };
  __device__ Row Of(const Product& p, int64_t row) const {
    const int64_t choice = order[row];
    return {choice * p.n, weights(choice)};
  }
  __device__ float Value(const Product& p, const Row& row, int32_t expert, int column, float sum, float) const {
    return row.weight * (sum + BiasOf<T>(p.side[0], expert, column));
  }
  __device__ void Store(const Row& row, int column, float low, float high, bool both) const {
    StorePair(out + row.at + column, low, high, both, pairs);
  }
};

// Rows of no expert.
template <class End>
__device__ void Clear(const Product& p, const End& end, const Work& work, int first, int thread, int threads) {
  const int columns = p.n - first < kBlockColumns ? p.n - first : kBlockColumns;
  for (int64_t i = thread; i < (work.end - work.begin) * columns; i += threads) {
    end.Store(end.Of(p, work.begin + i / columns), first + int(i % columns), 0, 0, false);
  }
}
#endif  // __CUDACC__

}  // namespace lz::experts
