// Rows of norms on CUDA, shared by RMSNorm and LayerNorm: one warp or one block processes a row in registers; the rest
// of a longer row is read again.
#pragma once

#include "kernels/cuda.h"

namespace lz {

#ifdef __CUDACC__
inline constexpr int kNormRowsPerBlock = 4;  // rows per block, one warp each
inline constexpr int64_t kManyRows = 512;    // from this number of rows on memory is the bottleneck, below it the
                                             // latency of one row
inline constexpr int kMostNormLanes = 1024;

// The start of a row; no division if one stride leads from each row to the next.
__device__ inline int64_t RowStart(const DeviceRows& rows, int64_t row) {
  return rows.n == 0 ? 0 : rows.n == 1 ? row * rows.stride[0] : rows[row];
}

// The sum over a row's lanes, in all of them.
template <int kRowLanes>
__device__ float RowSum(float v) {
  v = WarpSum(v);
  if constexpr (kRowLanes == kWarp) return v;
  constexpr int kWarps = kRowLanes / kWarp;
  __shared__ float parts[kWarps];
  __syncthreads();  // the previous sum has been read
  if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = v;
  __syncthreads();
  return WarpSum(threadIdx.x % kWarp < kWarps ? parts[threadIdx.x % kWarp] : 0.0f);
}

// Rounded to T.
template <class T, int kN>
__device__ Vector<T, kN> Sum(const Vector<T, kN>& a, const Vector<T, kN>& b) {
  Vector<T, kN> sum;
#pragma unroll
  for (int j = 0; j < kN; ++j) sum.v[j] = FromFloat<T>(ToFloat(a.v[j]) + ToFloat(b.v[j]));
  return sum;
}
// Vector i of a weight; `absent` if there is none.
template <class T, int kN>
__device__ Vector<T, kN> VectorOr(const T* weight, int64_t i, float absent) {
  if (weight) return reinterpret_cast<const Vector<T, kN>*>(weight)[i];
  Vector<T, kN> all;
#pragma unroll
  for (int j = 0; j < kN; ++j) all.v[j] = FromFloat<T>(absent);
  return all;
}
#endif  // __CUDACC__

}  // namespace lz
