// Products of 1 to 16 rows with weights that are stored in some format, on CUDA: output[m, j] = sum_i x[m, i] w[j, i].
//   A warp computes 16 columns j: asynchronous copies bring their stored weights into its own shared memory, three
//   stages ahead; codes become pairs of T in registers, exactly, and tensor cores multiply them with the rows of x,
//   FP32 sums. Warps of a block share the stages of one tile of columns where there are few tiles; their sums are added
//   in order.
// Scales multiply the FP32 sums of their groups. A sum that is not finite is taken again in FP64 as the definition has
// it.
//
// A Format has
//   kStageBytes, kStageValues   of one row in a stage: 16 rows of them are copied at a time
//   kExtraBytes                 of shared memory for a stage besides the codes, for its scales
//   kScaled                     false: codes are the weights, there are no scales
//   kOffsets                    weights are scale * code + offset, not scale * code
//   kHalfUnits                  scales may change every 16 values, not every 32
//   kNaturalPairs               Row returns values (0, 1), (2, 3) of a quad in pairs, not (0, 2), (1, 3)
//   Params                      what the launch passes
//   Format(params, column, last, lane), Issue(stage, extra): begins the copies of scales; Begin(stage): before its
//   copies
//                               are waited for
//   Row<T>(codes, unit, t, pairs): 32 values are a unit; the thread gets the quads 4 t .. 4 t + 3 of its two halves
//   Ends(unit, half), Scales(codes, codes of row g + 8, extra, unit, half): the factors of a group that ends there
//   At(params, weight row, j, i): the weight in FP64, Final(params, j): a factor of the whole sum
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

template <class T, class F, int kTiles>
__device__ void AddStage(F& format, const uint8_t* codes, int stage, int lane, Inputs<T, F, kTiles>* inputs,
                         Sums<T, F, kTiles>* sums) {
  const int skip = F::kStageBytes % 16 == 0 ? 0 : int(int64_t(stage) * F::kStageBytes % 16);
  using S = StageOf<F>;
  const uint8_t *low = codes + lane / 4 * S::kRowBytes + skip, *high = low + 8 * S::kRowBytes;
  const uint8_t* extra = codes + S::kCodes;
#pragma unroll
  for (int unit = 0; unit < S::kUnits; ++unit) {
    const auto& x = inputs->Unit(stage, unit);
    uint32_t a[4], b[4];
    format.template Row<T>(low, unit, lane % 4, a);
    format.template Row<T>(high, unit, lane % 4, b);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sums->Add(a, b, x, half);
      if constexpr (F::kScaled) {
        if ((F::kHalfUnits || half == 1) && format.Ends(unit, half)) {
          sums->End(format.Scales(low, high, extra, unit, half));
        }
      }
    }
  }
}

// The sum of column j and row m, where it is not finite: partial sums of FP32 may be what is not.
template <class T, class F>
__device__ float Exact(const Call<T>& call, const typename F::Params& params, int m, int j) {
  const T* x = call.x + call.x_rows[m];
  const uint8_t* row = call.weight + j * call.weight_stride;
  double sum = 0;
  for (int i = 0; i < call.k; ++i) sum += double(ToFloat(x[i])) * F::At(params, row, j, i);
  return float(sum);
}

template <class T, class F, int kTiles>
__global__ void __launch_bounds__(kMostWarps* kWarp) FewRows(const Call<T> call, const typename F::Params params) {
  using S = StageOf<F>;
  extern __shared__ __align__(16) unsigned char shared[];
  const int lane = int(threadIdx.x) % kWarp, warp = int(threadIdx.x) / kWarp, parts = 1 << call.parts_log2;
  const int first = int(blockIdx.x) * (int(blockDim.x) / kWarp >> call.parts_log2) * kColumns;  // column of the block
  const int column = first + (warp >> call.parts_log2) * kColumns, last = call.n - 1;
  const int stages = (call.k + F::kStageValues - 1) / F::kStageValues;
  Sums<T, F, kTiles> sums;
  if (column < call.n) {
    uint8_t* mine = shared + warp * kStages * S::kBytes;
    F format(params, column, last, lane);
    Inputs<T, F, kTiles> inputs(call, lane);
    const auto issue = [&](int stage, int slot) {
      if (stage < stages) {
        uint8_t* to = mine + slot * S::kBytes;
        IssueCodes<F>(call.weight, call.weight_stride, call.row_bytes, column, last, stage, lane, to);
        format.Issue(stage, to + S::kCodes);
      }
      CommitCopies();
    };
    int next = warp & (parts - 1), slot = 0;
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i, next += parts) issue(next, i);
    for (int stage = warp & (parts - 1); stage < stages; stage += parts, next += parts) {
      issue(next, (slot + kStages - 1) % kStages);
      format.Begin(stage);
      inputs.LoadStage(stage);
      WaitForCopies<kStages - 1>();
      __syncwarp();
      AddStage<T, F, kTiles>(format, mine + slot * S::kBytes, stage, lane, &inputs, &sums);
      __syncwarp();
      slot = (slot + 1) % kStages;
    }
    WaitForCopies<0>();
  }
  if constexpr (!F::kScaled) sums.End({.scale = {1, 1}, .offset = {}});
  __syncthreads();
  // [warp][16 columns][8 rows of each tile]
  float* found = reinterpret_cast<float*>(shared);
  constexpr int kRows = 8 * kTiles;
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      found[(warp * kColumns + lane / 4 + i / 2 * 8) * kRows + tile * 8 + lane % 4 * 2 + i % 2] = sums.total[tile][i];
    }
  }
  __syncthreads();
  const int columns = (int(blockDim.x) / kWarp >> call.parts_log2) * kColumns;
  for (int i = int(threadIdx.x); i < columns * call.rows; i += int(blockDim.x)) {
    const int m = i / columns, of_block = i % columns, j = first + of_block;
    if (j >= call.n) continue;
    const int at = (of_block / kColumns << call.parts_log2) * kColumns + of_block % kColumns;
    float sum = 0;
    for (int part = 0; part < parts; ++part) sum += found[(at + part * kColumns) * kRows + m];
    sum *= F::Final(params, j);
    if constexpr (F::kScaled) {
      if (!isfinite(sum)) sum = Exact<T, F>(call, params, m, j);
    }
    if (call.bias != nullptr) sum += ToFloat(call.bias[j * call.bias_stride]);
    call.out[int64_t(m) * call.n + j] = FromFloat<T>(sum);
  }
}

template <class T, class F, int kTiles>
int32_t Run(Call<T> call, const typename F::Params& params, cudaStream_t stream) {
  constexpr int kSums = kColumns * 8 * kTiles * int(sizeof(float)), kPipeline = kStages * StageOf<F>::kBytes;
  constexpr int kBytes = kPipeline > kSums ? kPipeline : kSums;  // of a warp
  const int64_t tiles = (call.n + kColumns - 1) / kColumns;
  const int stages = (call.k + F::kStageValues - 1) / F::kStageValues;
  const bool few = tiles * 8 < kWantedWarps / 2;  // one block has a multiprocessor to itself
  int warps = few ? kMostWarps : 8;
  while (warps > 1 && (warps * kBytes > (few ? 2 : 1) * kHalfShared ||
                       !AllowShared(reinterpret_cast<const void*>(&FewRows<T, F, kTiles>), warps * kBytes))) {
    warps /= 2;
  }
  int parts = 0;
  while (1 << parts < warps && 1 << parts < stages && (tiles << parts) < kWantedWarps) ++parts;
  call.parts_log2 = parts;
  const int64_t of_block = warps >> parts;
  FewRows<T, F, kTiles>
      <<<unsigned((tiles + of_block - 1) / of_block), unsigned(warps * kWarp), warps * kBytes, stream>>>(call, params);
  return Launched();
}

template <class T, class F>
int32_t Run(const Call<T>& call, const typename F::Params& params, void* stream) {
  if (call.rows <= 8) return Run<T, F, 1>(call, params, static_cast<cudaStream_t>(stream));
  return Run<T, F, 2>(call, params, static_cast<cudaStream_t>(stream));
}
#endif  // __CUDACC__

// The parts of a call that do not depend on the format. `stored`: what the codes are read from.
template <class T>
Call<T> CallOf(const lz_tensor& input, const lz_tensor& stored, const lz_tensor& bias, const lz_tensor& out) {
  Call<T> call = {.x = Data<const T>(input), .x_rows = DeviceRows(input)};
  call.weight = Data<const uint8_t>(stored);
  call.weight_stride = stored.strides[0], call.row_bytes = stored.shape[stored.ndim - 1];
  if (Given(bias)) call.bias = Data<const T>(bias), call.bias_stride = bias.strides[0];
  call.out = Data<T>(out);
  call.rows = int32_t(NumRows(input));
  call.n = int32_t(out.shape[out.ndim - 1]), call.k = int32_t(input.shape[input.ndim - 1]);
  return call;
}

}  // namespace lz::few_rows
