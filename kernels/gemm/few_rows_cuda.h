// Products of 1 to 16 rows with weights that are stored in some format, on CUDA: output[m, j] = sum_i x[m, i] w[j, i].
//   A warp computes 16 columns j. Asynchronous copies bring their stored weights into its own shared memory, two
//   stages ahead or more; codes become pairs of T in registers, exactly; tensor cores multiply them with the rows of x,
//   sums are FP32. Where there are few tiles of columns, warps of a block share the stages of a tile; their sums are
//   added in order.
// Scales multiply the sums of their groups. What is not finite is summed again in FP64, as the definition has it.
#pragma once

#include "kernels/gemm/few_rows_parts_cuda.h"

namespace lz::few_rows {

#ifdef __CUDACC__
// kEvery: units that share a factor.
template <int kEvery, class T, class F, int kTiles>
__device__ void AddStage(F& format, const uint8_t* codes, float* factors, int stage, int lane,
                         Inputs<T, F, kTiles>* inputs, Sums<T, F, kTiles>* sums) {
  using S = StageOf<F>;
  const int skip = F::kStageBytes % 16 == 0 ? 0 : int(int64_t(stage) * F::kStageBytes % 16);
  const uint8_t *low = codes + lane / 4 * S::kRowBytes + skip, *high = low + 8 * S::kRowBytes;
  if constexpr (F::kPrepared) {
    format.template Prepare<kEvery>(codes + skip, codes + S::kCodes, factors);
    __syncwarp();
  }
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
        if (F::kHalfUnits || (half == 1 && unit % kEvery == kEvery - 1)) {
          sums->End(format.template Scales<kEvery>(low, high, factors, unit, half));
        }
      }
    }
  }
}
template <class T, class F, int kTiles>
__device__ void AddStage(F& format, const uint8_t* codes, float* factors, int stage, int lane,
                         Inputs<T, F, kTiles>* inputs, Sums<T, F, kTiles>* sums) {
  constexpr int kUnits = StageOf<F>::kUnits;
  if constexpr (!F::kOften) {
    const int every = format.Every();
    if (every == kUnits) return AddStage<kUnits>(format, codes, factors, stage, lane, inputs, sums);
    if constexpr (kUnits > 4) {
      if (every == 4) return AddStage<4>(format, codes, factors, stage, lane, inputs, sums);
    }
  }
  AddStage<1>(format, codes, factors, stage, lane, inputs, sums);
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
  const int columns = (int(blockDim.x) / kWarp >> call.parts_log2) * kColumns;
  for (int i = int(threadIdx.x); call.fetched != 0 && i < columns && first + i < call.n; i += int(blockDim.x)) {
    FetchIntoL2(call.weight + (first + i) * call.weight_stride, call.fetched);
  }
  WaitForEarlierKernels();
  LetLaterKernelsBegin();  // not before: with a third product on its way the cache would be too small
  const int stages = (call.k + F::kStageValues - 1) / F::kStageValues;
  Sums<T, F, kTiles> sums;
  if (column < call.n) {
    uint8_t* mine = shared + warp * S::kPipeline;
    float* factors = reinterpret_cast<float*>(mine + S::kStages * S::kBytes);
    const Source<F> source(call, column, lane);
    F format(params, column, last, lane);
    Inputs<T, F, kTiles> inputs(call, lane);
    const auto issue = [&](int stage, int slot) {
      if (stage < stages) {
        uint8_t* to = mine + slot * S::kBytes;
        source.Issue(stage, to);
        format.Issue(stage, to + S::kCodes);
      }
      CommitCopies();
    };
    int next = warp & (parts - 1), slot = 0;
#pragma unroll
    for (int i = 0; i < S::kStages - 1; ++i, next += parts) issue(next, i);
    for (int stage = warp & (parts - 1); stage < stages; stage += parts, next += parts) {
      issue(next, (slot + S::kStages - 1) % S::kStages);
      format.Begin(stage);
      inputs.LoadStage(stage);
      WaitForCopies<S::kStages - 1>();
      __syncwarp();
      AddStage(format, mine + slot * S::kBytes, factors, stage, lane, &inputs, &sums);
      __syncwarp();
      slot = (slot + 1) % S::kStages;
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
  constexpr int kSums = kColumns * 8 * kTiles * int(sizeof(float)), kPipeline = StageOf<F>::kPipeline;
  constexpr int kBytes = kPipeline > kSums ? kPipeline : kSums;  // of a warp
  if (call.weight_stride * (kColumns - 1) > UINT32_MAX) return LZ_LAUNCH_REFUSED;
  const int64_t tiles = (call.n + kColumns - 1) / kColumns;
  const int stages = (call.k + F::kStageValues - 1) / F::kStageValues;
  const bool few = tiles * 8 <= kWantedWarps / 2;  // one block has a multiprocessor to itself
  int warps = few ? kMostWarps : 8;
  while (warps > 1 && (warps * kBytes > (few ? 2 : 1) * kHalfShared ||
                       !AllowShared(reinterpret_cast<const void*>(&FewRows<T, F, kTiles>), warps * kBytes))) {
    warps /= 2;
  }
  int parts = 0;
  while (1 << parts < warps && 1 << parts < stages && (tiles << parts) < kWantedWarps) ++parts;
  call.parts_log2 = parts;
  const int64_t of_block = warps >> parts;
  const bool aligned = Aligned(call.weight) && call.weight_stride % kVectorBytes == 0;
  const int64_t fetched = kFetched / call.n < call.row_bytes ? kFetched / call.n : call.row_bytes;
  if (aligned && HasDependentLaunches()) call.fetched = uint32_t(fetched / kVectorBytes * kVectorBytes);
  const DependentShape shape = {.grid = dim3(unsigned((tiles + of_block - 1) / of_block)),
                                .block = dim3(unsigned(warps * kWarp)),
                                .bytes = size_t(warps * kBytes),
                                .stream = stream};
  return LaunchDependent(&FewRows<T, F, kTiles>, shape, call, params);
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
