// RMSNorm of rows on CUDA, with or without a residual addition before it: what the two kernels share.
//   a row is taken by one warp or by one block of 256 or 1024 lanes, the fewest that hold it in registers with two
//   vectors a lane; what is beyond 1024 lanes is read again.
// FP32 sums in a fixed order; 16-byte accesses where addresses, strides and hidden allow, single elements otherwise.
#pragma once

#include "kernels/cuda.h"

namespace lz {

template <class T>
struct RmsRows {
  const T* x;
  const T* residual;  // with kResidual: added to x, the rounded sum goes to `sum` and is normalised
  const T* weight;    // nullptr: 1
  T* sum;
  T* out;
  DeviceRows x_rows, residual_rows;  // out and sum are contiguous
  int64_t rows, hidden;
  float eps, offset;
};

#ifdef __CUDACC__
inline constexpr int kRmsLongRow = 1024;    // lanes of a long row
inline constexpr int kRmsMiddleRow = 256;   // of a middle one; short rows have a warp
inline constexpr int kRmsRowsPerBlock = 4;  // of short rows
inline constexpr int kRmsHeld = 2;          // vectors of a row that a lane keeps

// The sum over a row's lanes, in all of them.
template <int kRowLanes>
__device__ float RmsRowSum(float v) {
  v = WarpSum(v);
  if constexpr (kRowLanes == kWarp) return v;
  constexpr int kWarps = kRowLanes / kWarp;
  __shared__ float parts[kWarps];
  __syncthreads();  // the row before has read its parts
  if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = v;
  __syncthreads();
  return WarpSum(threadIdx.x % kWarp < kWarps ? parts[threadIdx.x % kWarp] : 0.0f);
}

template <class T, int kN>
__device__ float SumOfSquares(const Vector<T, kN>& a) {
  float sum = 0;
#pragma unroll
  for (int j = 0; j < kN; ++j) sum += ToFloat(a.v[j]) * ToFloat(a.v[j]);
  return sum;
}
// Rounded to T.
template <class T, int kN>
__device__ Vector<T, kN> Sum(const Vector<T, kN>& a, const Vector<T, kN>& b) {
  Vector<T, kN> sum;
#pragma unroll
  for (int j = 0; j < kN; ++j) sum.v[j] = FromFloat<T>(ToFloat(a.v[j]) + ToFloat(b.v[j]));
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
// Ones where there is no weight.
template <class T, int kN>
__device__ Vector<T, kN> GainAt(const T* weight, int64_t i) {
  if (weight) return reinterpret_cast<const Vector<T, kN>*>(weight)[i];
  Vector<T, kN> ones;
#pragma unroll
  for (int j = 0; j < kN; ++j) ones.v[j] = FromFloat<T>(1.0f);
  return ones;
}

template <class T, int kN, int kRowLanes, bool kResidual>
__global__ void __launch_bounds__(kRowLanes == kWarp ? kWarp * kRmsRowsPerBlock : kRowLanes)
    RmsNorm(const RmsRows<T> a) {
  using V = Vector<T, kN>;
  const int64_t n = a.hidden / kN;
  for (int64_t row = int64_t(blockIdx.x) * blockDim.y + threadIdx.y; row < a.rows;
       row += int64_t(gridDim.x) * blockDim.y) {
    const V* x = reinterpret_cast<const V*>(a.x + a.x_rows[row]);
    const V* residual = kResidual ? reinterpret_cast<const V*>(a.residual + a.residual_rows[row]) : nullptr;
    V* sum = kResidual ? reinterpret_cast<V*>(a.sum + row * a.hidden) : nullptr;
    V* out = reinterpret_cast<V*>(a.out + row * a.hidden);
    // All loads are on their way before the first is used.
    V held[kRmsHeld], added[kResidual ? kRmsHeld : 1], gain[kRmsHeld];
#pragma unroll
    for (int k = 0; k < kRmsHeld; ++k) {
      const int64_t i = threadIdx.x + k * kRowLanes;
      if (i >= n) break;
      held[k] = x[i];
      if constexpr (kResidual) added[k] = residual[i];
      gain[k] = GainAt<T, kN>(a.weight, i);
    }
    float squares = 0;
#pragma unroll
    for (int k = 0; k < kRmsHeld; ++k) {
      const int64_t i = threadIdx.x + k * kRowLanes;
      if (i >= n) break;
      if constexpr (kResidual) sum[i] = held[k] = Sum(held[k], added[k]);
      squares += SumOfSquares(held[k]);
    }
    for (int64_t i = threadIdx.x + kRmsHeld * kRowLanes; i < n; i += kRowLanes) {
      V v = x[i];
      if constexpr (kResidual) sum[i] = v = Sum(v, residual[i]);
      squares += SumOfSquares(v);
    }
    const float scale = 1.0f / sqrtf(RmsRowSum<kRowLanes>(squares) / float(a.hidden) + a.eps);
#pragma unroll
    for (int k = 0; k < kRmsHeld; ++k) {
      const int64_t i = threadIdx.x + k * kRowLanes;
      if (i >= n) break;
      out[i] = Scaled(held[k], scale, gain[k], a.offset);
    }
    // A lane reads again only what it alone has read or written.
    for (int64_t i = threadIdx.x + kRmsHeld * kRowLanes; i < n; i += kRowLanes) {
      out[i] = Scaled(kResidual ? sum[i] : x[i], scale, GainAt<T, kN>(a.weight, i), a.offset);
    }
  }
}

template <class T, int kN, int kRowLanes, bool kResidual>
int32_t RunRms(const RmsRows<T>& a, cudaStream_t stream) {
  constexpr int kRows = kRowLanes == kWarp ? kRmsRowsPerBlock : 1;
  constexpr int64_t kMaxBlocks = 1 << 20;  // above it blocks take several rows
  const int64_t blocks = (a.rows + kRows - 1) / kRows;
  RmsNorm<T, kN, kRowLanes, kResidual>
      <<<unsigned(blocks < kMaxBlocks ? blocks : kMaxBlocks), dim3(kRowLanes, kRows), 0, stream>>>(a);
  return Launched();
}

template <class T, int kN, bool kResidual>
int32_t RunRms(const RmsRows<T>& a, cudaStream_t stream) {
  const int64_t per_lane = kRmsHeld * kN;
  if (a.hidden <= per_lane * kWarp) return RunRms<T, kN, kWarp, kResidual>(a, stream);
  if (a.hidden <= per_lane * kRmsMiddleRow) return RunRms<T, kN, kRmsMiddleRow, kResidual>(a, stream);
  return RunRms<T, kN, kRmsLongRow, kResidual>(a, stream);
}

// Chooses the width of the accesses.
template <class T, bool kResidual>
int32_t LaunchRms(const RmsRows<T>& a, void* stream) {
  if (a.rows == 0 || a.hidden == 0) return 0;
  constexpr int kN = kLanes<T>;
  const bool wide = Aligned(a.x, a.residual, a.weight, a.sum, a.out) && a.hidden % kN == 0 && a.x_rows.Aligned(kN) &&
                    a.residual_rows.Aligned(kN);
  if (wide) return RunRms<T, kN, kResidual>(a, static_cast<cudaStream_t>(stream));
  return RunRms<T, 1, kResidual>(a, static_cast<cudaStream_t>(stream));
}
#endif  // __CUDACC__

}  // namespace lz
