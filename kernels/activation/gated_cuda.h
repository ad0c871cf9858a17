// f(gate, up) over rows on CUDA: what the activations share, gated ones and those of one input. FP32 arithmetic,
// rounded once; 16-byte accesses where addresses, strides and widths allow, single elements otherwise.
#pragma once

#include "kernels/cuda.h"

namespace lz {

// Where gate and up are: two tensors; one tensor without up; or pairs of one tensor, gate first.
enum class GatedForm : uint8_t { kTwo, kOne, kPairs };

template <class T>
struct GatedRows {
  const T* gate;
  const T* up;  // kTwo alone
  T* out;       // contiguous; may be gate or up
  DeviceRows gate_rows, up_rows;
  int64_t rows, n;  // n of the output
};

#ifdef __CUDACC__
struct Silu {
  __device__ float operator()(float x) const { return x / (1.0f + expf(-x)); }
};
// f(gate) * up
template <class F>
struct Times {
  F f;
  __device__ float operator()(float gate, float up) const { return f(gate) * up; }
};

inline constexpr int kGatedThreads = 256;      // of a block, at most
inline constexpr int kFewGatedThreads = 64;    // where blocks of more leave most of the device without one
inline constexpr int64_t kFewGated = 1 << 15;  // vectors of such a call

template <GatedForm kForm, class T, int kN, class F>
__device__ Vector<T, kN> GatedVector(const Vector<T, kN>* gate, const Vector<T, kN>* up, int64_t i, F f) {
  Vector<T, kN> result;
  if constexpr (kForm == GatedForm::kPairs) {
    const Vector<T, kN> a = gate[2 * i], b = gate[2 * i + 1];
#pragma unroll
    for (int j = 0; j < kN; ++j) {
      const T g = 2 * j < kN ? a.v[2 * j % kN] : b.v[2 * j % kN];
      const T u = 2 * j + 1 < kN ? a.v[(2 * j + 1) % kN] : b.v[(2 * j + 1) % kN];
      result.v[j] = FromFloat<T>(f(ToFloat(g), ToFloat(u)));
    }
  } else {
    const Vector<T, kN> g = gate[i];
    Vector<T, kN> u = g;
    if constexpr (kForm == GatedForm::kTwo) u = up[i];
#pragma unroll
    for (int j = 0; j < kN; ++j) result.v[j] = FromFloat<T>(f(ToFloat(g.v[j]), ToFloat(u.v[j])));
  }
  return result;
}

template <GatedForm kForm, class T, int kN, class F>
__global__ void __launch_bounds__(kGatedThreads) Gated(const GatedRows<T> a, F f) {
  using V = Vector<T, kN>;
  const int64_t n = a.n / kN;
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const V* gate = reinterpret_cast<const V*>(a.gate + a.gate_rows[row]);
    const V* up = kForm == GatedForm::kTwo ? reinterpret_cast<const V*>(a.up + a.up_rows[row]) : nullptr;
    V* out = reinterpret_cast<V*>(a.out + row * a.n);
    for (int64_t i = int64_t(blockIdx.y) * blockDim.x + threadIdx.x; i < n; i += int64_t(gridDim.y) * blockDim.x) {
      out[i] = GatedVector<kForm>(gate, up, i, f);
    }
  }
}

template <GatedForm kForm, class T, int kN, class F>
int32_t RunGated(const GatedRows<T>& a, F f, cudaStream_t stream) {
  constexpr int64_t kMaxRows = int64_t{1} << 30;  // blocks along x; more rows take turns
  const int64_t vectors = a.n / kN, most = vectors * a.rows < kFewGated ? kFewGatedThreads : kGatedThreads;
  const int64_t threads = vectors < most ? (vectors + kWarp - 1) / kWarp * kWarp : most;
  const int64_t chunks = (vectors + threads - 1) / threads;
  const dim3 grid(unsigned(a.rows < kMaxRows ? a.rows : kMaxRows), unsigned(chunks < kMaxGridY ? chunks : kMaxGridY));
  Gated<kForm, T, kN><<<grid, unsigned(threads), 0, stream>>>(a, f);
  return Launched();
}

// Chooses the width of the accesses; dense rows become one.
template <GatedForm kForm, class T, class F>
int32_t LaunchGated(GatedRows<T> a, F f, void* stream) {
  if (a.rows == 0 || a.n == 0) return 0;
  constexpr int kN = kLanes<T>;
  const int64_t gate_width = kForm == GatedForm::kPairs ? 2 * a.n : a.n;
  if (a.gate_rows.Dense(gate_width) && a.up_rows.Dense(a.n)) {
    a.n *= a.rows;
    a.rows = 1;
    a.gate_rows = a.up_rows = DeviceRows();
  }
  const bool wide = Aligned(a.gate, a.up, a.out) && a.n % kN == 0 && a.gate_rows.Aligned(kN) && a.up_rows.Aligned(kN);
  if (wide) return RunGated<kForm, T, kN>(a, f, static_cast<cudaStream_t>(stream));
  return RunGated<kForm, T, 1>(a, f, static_cast<cudaStream_t>(stream));
}

// f(gate, up): tensors gate, up and out [..., n], all of one dtype. kOne, kPairs: `up` is absent.
template <GatedForm kForm, class F>
int32_t LaunchForm(const lz_kernel_args* args, const lz_tensor& gate, const lz_tensor& up, const lz_tensor& out, F f) {
  return WithCudaFloat(DTypeOf(gate), [&](auto t) {
    using T = decltype(t);
    const bool two = kForm == GatedForm::kTwo;
    const GatedRows<T> rows = {.gate = Data<const T>(gate),
                               .up = two ? Data<const T>(up) : nullptr,
                               .out = Data<T>(out),
                               .gate_rows = DeviceRows(gate),
                               .up_rows = two ? DeviceRows(up) : DeviceRows(),
                               .rows = NumRows(out),
                               .n = out.ndim > 0 ? out.shape[out.ndim - 1] : 1};
    return LaunchGated<kForm>(rows, f, args->stream);
  });
}

// f(gate) * up.
template <class F>
int32_t LaunchGated(const lz_kernel_args* args, const lz_tensor& gate, const lz_tensor& up, const lz_tensor& out, F f) {
  return LaunchForm<GatedForm::kTwo>(args, gate, up, out, Times<F>{f});
}
#endif  // __CUDACC__

}  // namespace lz
