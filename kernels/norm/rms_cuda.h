// RMSNorm of rows on CUDA, with or without a residual addition before it, shared by the two kernels.
//   few rows: two vectors per lane, for the latency of one row; many rows: four, or the weights from the L1 cache when
//   they are needed, so that more rows are in flight at a time.
// FP32 sums in a fixed order; 16-byte accesses where addresses, strides and hidden allow, single elements otherwise.
#pragma once

#include "kernels/norm/row_cuda.h"

namespace lz {

inline constexpr auto kRmsCudaConstraints = std::to_array<Constraint>({
    kOnCompiledSm,
    kOnDriver,
    {"weight.same_dtype", Rel::kEq, 1},
    {"hidden", Rel::kLe, int64_t{1} << 30},
});
inline constexpr std::array<std::string_view, 2> kRmsCudaAccepts = {"weight", "weight_offset"};

#ifdef __CUDACC__
template <class T, int kN>
__device__ float SumOfSquares(const Vector<T, kN>& a) {
  float sum = 0;
#pragma unroll
  for (int j = 0; j < kN; ++j) sum += ToFloat(a.v[j]) * ToFloat(a.v[j]);
  return sum;
}
// a * scale * (gain + offset)
template <class T, int kN>
__device__ Vector<T, kN> Scaled(const Vector<T, kN>& a, float scale, const Vector<T, kN>& gain, float offset) {
  Vector<T, kN> result;
#pragma unroll
  for (int j = 0; j < kN; ++j) result.v[j] = FromFloat<T>(ToFloat(a.v[j]) * scale * (ToFloat(gain.v[j]) + offset));
  return result;
}
// kHeld: vectors of a row per lane. kEarly: the weights are loaded with the row. Rows for fewer than the most lanes fit
// their registers.
template <class T, int kN, int kRowLanes, int kHeld, bool kEarly, bool kResidual>
__global__ void __launch_bounds__(kRowLanes == kWarp ? kWarp * kNormRowsPerBlock : kRowLanes)
    RmsNorm(const NormRows<T> a) {
  using V = Vector<T, kN>;
  const int n = int(a.hidden / kN);
  constexpr bool kTail = kRowLanes == kMostNormLanes;
  LetLaterKernelsBegin();
  WaitForEarlierKernels();
  for (int64_t row = int64_t(blockIdx.x) * blockDim.y + threadIdx.y; row < a.rows;
       row += int64_t(gridDim.x) * blockDim.y) {
    const V* x = reinterpret_cast<const V*>(a.x + RowStart(a.x_rows, row));
    const V* residual = kResidual ? reinterpret_cast<const V*>(a.residual + RowStart(a.residual_rows, row)) : nullptr;
    V* sum = kResidual ? reinterpret_cast<V*>(a.sum + row * a.hidden) : nullptr;
    V* out = reinterpret_cast<V*>(a.out + row * a.hidden);
    // All loads are issued before the first result is used: predicated, because a branch would wait for what it
    // has loaded.
    V held[kHeld], added[kResidual ? kHeld : 1], gain[kEarly ? kHeld : 1];
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      const int i = int(threadIdx.x) + k * kRowLanes;
      if (i < n) {
        held[k] = x[i];
        if constexpr (kResidual) added[k] = residual[i];
        if constexpr (kEarly) gain[k] = VectorOr<T, kN>(a.weight, i, 1.0f);
      }
    }
    float squares = 0;
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      const int i = int(threadIdx.x) + k * kRowLanes;
      if (i < n) {
        if constexpr (kResidual) sum[i] = held[k] = Sum(held[k], added[k]);
        squares += SumOfSquares(held[k]);
      }
    }
    for (int i = int(threadIdx.x) + kHeld * kRowLanes; kTail && i < n; i += kRowLanes) {
      V v = x[i];
      if constexpr (kResidual) sum[i] = v = Sum(v, residual[i]);
      squares += SumOfSquares(v);
    }
    const float scale = 1.0f / sqrtf(RowSum<kRowLanes>(squares) / float(a.hidden) + a.eps);
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      const int i = int(threadIdx.x) + k * kRowLanes;
      if (i < n)
        out[i] = Scaled(held[k], scale, kEarly ? gain[kEarly ? k : 0] : VectorOr<T, kN>(a.weight, i, 1.0f), a.offset);
    }
    // A lane reads again only elements that no other lane reads or writes.
    for (int i = int(threadIdx.x) + kHeld * kRowLanes; kTail && i < n; i += kRowLanes) {
      out[i] = Scaled(kResidual ? sum[i] : x[i], scale, VectorOr<T, kN>(a.weight, i, 1.0f), a.offset);
    }
  }
}

template <class T, int kN, int kRowLanes, int kHeld, bool kEarly, bool kResidual>
int32_t RunRms(const NormRows<T>& a, cudaStream_t stream) {
  constexpr int kRows = kRowLanes == kWarp ? kNormRowsPerBlock : 1;
  constexpr int64_t kMaxBlocks = 1 << 20;  // with more rows, blocks process several
  const int64_t blocks = (a.rows + kRows - 1) / kRows;
  const dim3 grid(unsigned(blocks < kMaxBlocks ? blocks : kMaxBlocks));
  return LaunchDependent(&RmsNorm<T, kN, kRowLanes, kHeld, kEarly, kResidual>,
                         {.grid = grid, .block = dim3(kRowLanes, kRows), .stream = stream}, a);
}

template <class T, int kN, bool kResidual>
int32_t RunRms(const NormRows<T>& a, cudaStream_t stream) {
  const int64_t vectors = a.hidden / kN;
  if (vectors <= 2 * kWarp) return RunRms<T, kN, kWarp, 2, true, kResidual>(a, stream);
  if constexpr (kN > 1) {
    if (a.rows >= kManyRows) {
      if (vectors <= 4 * 128) return RunRms<T, kN, 128, 4, true, kResidual>(a, stream);
      if (vectors <= 2 * 512) return RunRms<T, kN, 512, 2, false, kResidual>(a, stream);
    }
  }
  if (vectors <= 2 * 256) return RunRms<T, kN, 256, 2, true, kResidual>(a, stream);
  return RunRms<T, kN, 1024, 2, true, kResidual>(a, stream);
}

// Selects the width of the accesses.
template <class T, bool kResidual>
int32_t LaunchRms(const NormRows<T>& a, void* stream) {
  if (a.rows == 0 || a.hidden == 0) return 0;
  constexpr int kN = kLanes<T>;
  if (InVectors<kN>(a)) return RunRms<T, kN, kResidual>(a, static_cast<cudaStream_t>(stream));
  return RunRms<T, 1, kResidual>(a, static_cast<cudaStream_t>(stream));
}
// For f32, f16 and bf16.
template <bool kResidual>
int32_t LaunchRms(const lz_kernel_args* args, const NormIndices& at) {
  return WithCudaFloat(DTypeOf(args->tensors[at.input]), [&](auto t) {
    return LaunchRms<decltype(t), kResidual>(NormRows<decltype(t)>(args, at), args->stream);
  });
}
#endif  // __CUDACC__

}  // namespace lz
