// Rows of norms on CUDA, shared by RMSNorm and LayerNorm: one warp or one block processes a row in registers; the rest
// of a longer row is read again.
#pragma once

#include "kernels/dependent_cuda.h"

namespace lz {

// The numbers of a norm's tensors and scalars in its contract; -1: it has no such tensor.
struct NormIndices {
  int input, residual = -1, weight, bias = -1, sum = -1, output, eps, offset;
};

template <class T>
struct NormRows {
  const T* x;
  const T* residual;  // added to x; the rounded sum is stored in `sum` and normalized
  const T* weight;    // nullptr: 1
  const T* bias;      // nullptr: 0
  T* sum;
  T* out;
  DeviceRows x_rows, residual_rows;  // out and sum are contiguous
  int64_t rows, hidden;
  float eps, offset;

  NormRows(const lz_kernel_args* args, const NormIndices& at)
      : x(Of(args, at.input)),
        residual(Of(args, at.residual)),
        weight(Of(args, at.weight)),
        bias(Of(args, at.bias)),
        sum(Of(args, at.sum)),
        out(Of(args, at.output)),
        x_rows(args->tensors[at.input]),
        rows(NumRows(args->tensors[at.input])),
        hidden(args->tensors[at.input].shape[args->tensors[at.input].ndim - 1]),
        eps(float(args->scalars[at.eps].value.f)),
        offset(float(args->scalars[at.offset].value.f)) {
    if (residual) residual_rows = DeviceRows(args->tensors[at.residual]);
  }

 private:
  static T* Of(const lz_kernel_args* args, int tensor) {
    return tensor >= 0 && Given(args->tensors[tensor]) ? Data<T>(args->tensors[tensor]) : nullptr;
  }
};

// True if every row can be read and written in vectors of kN elements.
template <int kN, class T>
bool InVectors(const NormRows<T>& a) {
  return Aligned(a.x, a.residual, a.weight, a.bias, a.sum, a.out) && a.hidden % kN == 0 && a.x_rows.Aligned(kN) &&
         a.residual_rows.Aligned(kN);
}

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
