// f(gate, up) over rows on CUDA: what the activations share, gated ones and those of one input. FP32 arithmetic,
// rounded once; 16-byte accesses where addresses, strides and widths allow, single elements otherwise.
#pragma once

#include "kernels/activation/functions_cuda.h"
#include "kernels/dependent_cuda.h"

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
  int32_t vectors;  // of a thread, one after another block's threads' width
};

#ifdef __CUDACC__
// f(gate) * up
template <class F>
struct Times {
  F f;
  __device__ float operator()(float gate, float up) const { return f(gate) * up; }
};

inline constexpr int kGatedThreads = 256;       // of a block, at most
inline constexpr int kFewGatedThreads = 64;     // where blocks of more leave most of the device without one
inline constexpr int64_t kFewGated = 1 << 15;   // vectors of such a call: one for each thread
inline constexpr int64_t kManyGated = 1 << 18;  // from that on a thread loads several before it uses the first

template <GatedForm kForm, class T, int kN>
struct GatedVectors {
  Vector<T, kN> gate = {}, up = {};  // kPairs: two vectors of pairs

  GatedVectors() = default;
  __device__ GatedVectors(const Vector<T, kN>* from, const Vector<T, kN>* other, int64_t i) {
    if constexpr (kForm == GatedForm::kPairs) {
      gate = from[2 * i];
      up = from[2 * i + 1];
    } else {
      gate = from[i];
      if constexpr (kForm == GatedForm::kTwo) up = other[i];
    }
  }
  template <class F>
  __device__ Vector<T, kN> Map(F f) const {
    Vector<T, kN> result;
#pragma unroll
    for (int j = 0; j < kN; ++j) {
      T g = gate.v[j], u = kForm == GatedForm::kTwo ? up.v[j] : g;
      if constexpr (kForm == GatedForm::kPairs) {
        g = 2 * j < kN ? gate.v[2 * j % kN] : up.v[2 * j % kN];
        u = 2 * j + 1 < kN ? gate.v[(2 * j + 1) % kN] : up.v[(2 * j + 1) % kN];
      }
      result.v[j] = FromFloat<T>(f(ToFloat(g), ToFloat(u)));
    }
    return result;
  }
};

template <GatedForm kForm, class T, int kN, class F>
__global__ void __launch_bounds__(kGatedThreads) Gated(const __grid_constant__ GatedRows<T> a, F f) {
  using V = Vector<T, kN>;
  constexpr int kBatch = kForm == GatedForm::kOne ? 4 : 2;
  const int64_t n = a.n / kN, of_block = int64_t(a.vectors) * blockDim.x;
  LetLaterKernelsBegin();
  WaitForEarlierKernels();
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const V* gate = reinterpret_cast<const V*>(a.gate + a.gate_rows[row]);
    const V* up = kForm == GatedForm::kTwo ? reinterpret_cast<const V*>(a.up + a.up_rows[row]) : nullptr;
    V* out = reinterpret_cast<V*>(a.out + row * a.n);
    for (int64_t first = int64_t(blockIdx.y) * of_block + threadIdx.x; first < n;
         first += int64_t(gridDim.y) * of_block) {
      GatedVectors<kForm, T, kN> v[kBatch];
#pragma unroll
      for (int h = 0; h < kBatch; ++h) {
        const int64_t i = first + h * int(blockDim.x);
        if (h < a.vectors && i < n) v[h] = GatedVectors<kForm, T, kN>(gate, up, i);
      }
#pragma unroll
      for (int h = 0; h < kBatch; ++h) {
        const int64_t i = first + h * int(blockDim.x);
        if (h < a.vectors && i < n) out[i] = v[h].Map(f);
      }
    }
  }
}

template <GatedForm kForm, class T, int kN, class F>
int32_t RunGated(GatedRows<T> a, F f, cudaStream_t stream) {
  constexpr int64_t kMaxRows = int64_t{1} << 30;  // blocks along x; more rows take turns
  const int64_t vectors = a.n / kN, all = vectors * a.rows, most = all < kFewGated ? kFewGatedThreads : kGatedThreads;
  const int64_t threads = vectors < most ? (vectors + kWarp - 1) / kWarp * kWarp : most;
  a.vectors = all < kManyGated ? 1 : kForm == GatedForm::kOne ? 4 : 2;
  const int64_t chunks = (vectors + a.vectors * threads - 1) / (a.vectors * threads);
  const dim3 grid(unsigned(a.rows < kMaxRows ? a.rows : kMaxRows), unsigned(chunks < kMaxGridY ? chunks : kMaxGridY));
  return LaunchDependent(&Gated<kForm, T, kN, F>, {.grid = grid, .block = dim3(unsigned(threads)), .stream = stream}, a,
                         f);
}

// Chooses the width of the accesses; dense rows become one. `narrow`: f of single elements.
template <GatedForm kForm, class T, class F, class N>
int32_t LaunchGated(GatedRows<T> a, F f, N narrow, void* stream) {
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
  return RunGated<kForm, T, 1>(a, narrow, static_cast<cudaStream_t>(stream));
}

// f(gate, up): tensors gate, up and out [..., n], all of one dtype. kOne, kPairs: `up` is absent.
template <GatedForm kForm, class F, class N>
int32_t LaunchForm(const lz_kernel_args* args, const lz_tensor& gate, const lz_tensor& up, const lz_tensor& out, F f,
                   N narrow) {
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
    return LaunchGated<kForm>(rows, f, narrow, args->stream);
  });
}

// f(gate) * up.
template <class F>
int32_t LaunchGated(const lz_kernel_args* args, const lz_tensor& gate, const lz_tensor& up, const lz_tensor& out, F f) {
  return LaunchForm<GatedForm::kTwo>(args, gate, up, out, Times<F>{f}, Times<F>{f});
}
#endif  // __CUDACC__

}  // namespace lz
