// LayerNorm of rows on CUDA, with or without a residual addition before it. The variance is computed from the
// differences from the mean: two passes over registers. FP32 sums in a fixed order; 16-byte accesses where addresses,
// strides and hidden allow, single elements otherwise.
#pragma once

#include "kernels/norm/row_cuda.h"

namespace lz {

inline constexpr auto kLayerCudaConstraints = std::to_array<Constraint>({
    kOnCompiledSm,
    kOnDriver,
    {"weight.same_dtype", Rel::kEq, 1},
    {"hidden", Rel::kLe, int64_t{1} << 30},
    {"bias.same_dtype", Rel::kEq, 1},
});

#ifdef __CUDACC__
inline constexpr int kLayerHeld = 4;  // vectors of a row per lane

template <class T, int kN>
__device__ float Total(const Vector<T, kN>& a) {
  float sum = 0;
#pragma unroll
  for (int j = 0; j < kN; ++j) sum += ToFloat(a.v[j]);
  return sum;
}
template <class T, int kN>
__device__ float SquaresFrom(const Vector<T, kN>& a, float mean) {
  float sum = 0;
#pragma unroll
  for (int j = 0; j < kN; ++j) sum += (ToFloat(a.v[j]) - mean) * (ToFloat(a.v[j]) - mean);
  return sum;
}
template <class T, int kN>
__device__ Vector<T, kN> Normalised(const NormRows<T>& a, const Vector<T, kN>& x, float mean, float scale, int64_t i) {
  const Vector<T, kN> gain = VectorOr<T, kN>(a.weight, i, 1.0f), bias = VectorOr<T, kN>(a.bias, i, 0.0f);
  Vector<T, kN> result;
#pragma unroll
  for (int j = 0; j < kN; ++j) {
    const float v = (ToFloat(x.v[j]) - mean) * scale;
    result.v[j] = FromFloat<T>(v * (ToFloat(gain.v[j]) + a.offset) + ToFloat(bias.v[j]));
  }
  return result;
}

template <class T, int kN, int kRowLanes, bool kResidual>
__global__ void __launch_bounds__(kRowLanes == kWarp ? kWarp * kNormRowsPerBlock : kRowLanes)
    LayerNorm(const NormRows<T> a) {
  using V = Vector<T, kN>;
  const int n = int(a.hidden / kN);
  constexpr int kHeldInAll = kLayerHeld * kRowLanes;
  constexpr bool kTail = kRowLanes == kMostNormLanes;  // rows for fewer lanes fit their registers
  for (int64_t row = int64_t(blockIdx.x) * blockDim.y + threadIdx.y; row < a.rows;
       row += int64_t(gridDim.x) * blockDim.y) {
    const V* x = reinterpret_cast<const V*>(a.x + RowStart(a.x_rows, row));
    const V* residual = kResidual ? reinterpret_cast<const V*>(a.residual + RowStart(a.residual_rows, row)) : nullptr;
    V* sum = kResidual ? reinterpret_cast<V*>(a.sum + row * a.hidden) : nullptr;
    V* out = reinterpret_cast<V*>(a.out + row * a.hidden);
    V held[kLayerHeld], added[kResidual ? kLayerHeld : 1];
#pragma unroll
    for (int k = 0; k < kLayerHeld; ++k) {
      const int i = int(threadIdx.x) + k * kRowLanes;
      if (i < n) {
        held[k] = x[i];
        if constexpr (kResidual) added[k] = residual[i];
      }
    }
    float total = 0;
#pragma unroll
    for (int k = 0; k < kLayerHeld; ++k) {
      const int i = int(threadIdx.x) + k * kRowLanes;
      if (i < n) {
        if constexpr (kResidual) sum[i] = held[k] = Sum(held[k], added[k]);
        total += Total(held[k]);
      }
    }
    for (int i = int(threadIdx.x) + kHeldInAll; kTail && i < n; i += kRowLanes) {
      V v = x[i];
      if constexpr (kResidual) sum[i] = v = Sum(v, residual[i]);
      total += Total(v);
    }
    // From here on a lane reads again only elements that no other lane reads or writes.
    const V* again = kResidual ? sum : x;
    const float mean = RowSum<kRowLanes>(total) / float(a.hidden);
    float squares = 0;
#pragma unroll
    for (int k = 0; k < kLayerHeld; ++k) {
      if (int(threadIdx.x) + k * kRowLanes < n) squares += SquaresFrom(held[k], mean);
    }
    for (int i = int(threadIdx.x) + kHeldInAll; kTail && i < n; i += kRowLanes) squares += SquaresFrom(again[i], mean);
    const float scale = 1.0f / sqrtf(RowSum<kRowLanes>(squares) / float(a.hidden) + a.eps);
#pragma unroll
    for (int k = 0; k < kLayerHeld; ++k) {
      const int i = int(threadIdx.x) + k * kRowLanes;
      if (i < n) out[i] = Normalised(a, held[k], mean, scale, i);
    }
    for (int i = int(threadIdx.x) + kHeldInAll; kTail && i < n; i += kRowLanes)
      out[i] = Normalised(a, again[i], mean, scale, i);
  }
}

template <class T, int kN, int kRowLanes, bool kResidual>
int32_t RunLayer(const NormRows<T>& a, cudaStream_t stream) {
  constexpr int kRows = kRowLanes == kWarp ? kNormRowsPerBlock : 1;
  constexpr int64_t kMaxBlocks = 1 << 20;  // with more rows, blocks process several
  const int64_t blocks = (a.rows + kRows - 1) / kRows;
  LayerNorm<T, kN, kRowLanes, kResidual>
      <<<unsigned(blocks < kMaxBlocks ? blocks : kMaxBlocks), dim3(kRowLanes, kRows), 0, stream>>>(a);
  return Launched();
}

// The fewest lanes whose registers hold a row; more of them if there are few rows, for the latency of one.
template <class T, int kN, bool kResidual>
int32_t RunLayer(const NormRows<T>& a, cudaStream_t stream) {
  const int64_t vectors = a.hidden / kN, each = a.rows < kManyRows ? 1 : kLayerHeld;
  if (vectors <= each * kWarp) return RunLayer<T, kN, kWarp, kResidual>(a, stream);
  if constexpr (kN > 1) {
    if (vectors <= each * 128) return RunLayer<T, kN, 128, kResidual>(a, stream);
    if (vectors <= each * 256) return RunLayer<T, kN, 256, kResidual>(a, stream);
  }
  return RunLayer<T, kN, 1024, kResidual>(a, stream);
}

// Selects the width of the accesses.
template <class T, bool kResidual>
int32_t LaunchLayer(const NormRows<T>& a, void* stream) {
  if (a.rows == 0 || a.hidden == 0) return 0;
  constexpr int kN = kLanes<T>;
  if (InVectors<kN>(a)) return RunLayer<T, kN, kResidual>(a, static_cast<cudaStream_t>(stream));
  return RunLayer<T, 1, kResidual>(a, static_cast<cudaStream_t>(stream));
}
// For f32, f16 and bf16.
template <bool kResidual>
int32_t LaunchLayer(const lz_kernel_args* args, const NormIndices& at) {
  return WithCudaFloat(DTypeOf(args->tensors[at.input]), [&](auto t) {
    return LaunchLayer<decltype(t), kResidual>(NormRows<decltype(t)>(args, at), args->stream);
  });
}
#endif  // __CUDACC__

}  // namespace lz
