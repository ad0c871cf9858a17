// f(gate) * up over rows on CUDA: what the gated activations share. FP32 arithmetic, rounded once; 16-byte accesses
// where addresses, strides and widths allow, single elements otherwise.
#pragma once

#include "kernels/cuda.h"

namespace lz {

template <class T>
struct GatedRows {
  const T* gate;
  const T* up;
  T* out;  // contiguous; may be gate or up
  DeviceRows gate_rows, up_rows;
  int64_t rows, n;
};

#ifdef __CUDACC__
struct Silu {
  __device__ float operator()(float x) const { return x / (1.0f + expf(-x)); }
};

inline constexpr int kGatedThreads = 256;  // of a block, at most

template <class T, int kN, class F>
__global__ void __launch_bounds__(kGatedThreads) Gated(const GatedRows<T> a, F f) {
  using V = Vector<T, kN>;
  const int64_t n = a.n / kN;
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const V* gate = reinterpret_cast<const V*>(a.gate + a.gate_rows[row]);
    const V* up = reinterpret_cast<const V*>(a.up + a.up_rows[row]);
    V* out = reinterpret_cast<V*>(a.out + row * a.n);
    for (int64_t i = int64_t(blockIdx.y) * blockDim.x + threadIdx.x; i < n; i += int64_t(gridDim.y) * blockDim.x) {
      const V g = gate[i], u = up[i];
      V result;
#pragma unroll
      for (int j = 0; j < kN; ++j) result.v[j] = FromFloat<T>(f(ToFloat(g.v[j])) * ToFloat(u.v[j]));
      out[i] = result;
    }
  }
}

template <class T, int kN, class F>
int32_t RunGated(const GatedRows<T>& a, F f, cudaStream_t stream) {
  constexpr int64_t kMaxRows = int64_t{1} << 30;  // blocks along x; more rows take turns
  const int64_t vectors = a.n / kN, chunks = (vectors + kGatedThreads - 1) / kGatedThreads;
  const int64_t threads = vectors < kGatedThreads ? (vectors + kWarp - 1) / kWarp * kWarp : kGatedThreads;
  const dim3 grid(unsigned(a.rows < kMaxRows ? a.rows : kMaxRows), unsigned(chunks < kMaxGridY ? chunks : kMaxGridY));
  Gated<T, kN><<<grid, unsigned(threads), 0, stream>>>(a, f);
  return Launched();
}

// Chooses the width of the accesses; dense rows become one.
template <class T, class F>
int32_t LaunchGated(GatedRows<T> a, F f, void* stream) {
  if (a.rows == 0 || a.n == 0) return 0;
  constexpr int kN = kLanes<T>;
  if (a.gate_rows.Dense(a.n) && a.up_rows.Dense(a.n)) {
    a.n *= a.rows;
    a.rows = 1;
    a.gate_rows = a.up_rows = DeviceRows();
  }
  const bool wide = Aligned(a.gate, a.up, a.out) && a.n % kN == 0 && a.gate_rows.Aligned(kN) && a.up_rows.Aligned(kN);
  if (wide) return RunGated<T, kN>(a, f, static_cast<cudaStream_t>(stream));
  return RunGated<T, 1>(a, f, static_cast<cudaStream_t>(stream));
}

// Tensors gate, up and out [..., n], all of one dtype.
template <class F>
int32_t LaunchGated(const lz_kernel_args* args, const lz_tensor& gate, const lz_tensor& up, const lz_tensor& out, F f) {
  return WithCudaFloat(DTypeOf(gate), [&](auto t) {
    using T = decltype(t);
    const GatedRows<T> rows = {.gate = Data<const T>(gate),
                               .up = Data<const T>(up),
                               .out = Data<T>(out),
                               .gate_rows = DeviceRows(gate),
                               .up_rows = DeviceRows(up),
                               .rows = NumRows(gate),
                               .n = gate.shape[gate.ndim - 1]};
    return LaunchGated(rows, f, args->stream);
  });
}
#endif  // __CUDACC__

}  // namespace lz
