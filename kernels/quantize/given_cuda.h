// quantize with given scales, on CUDA: a thread processes some values of a row in one pass.
#pragma once

#include <cfloat>

#include "kernels/quantize/codes_cuda.h"

namespace lz {

struct GivenScales {
  const void* x;
  DeviceRows x_rows;
  uint8_t* values;  // contiguous
  int64_t rows, k;
  ScaleMap scale, zero_point, tensor_scale;  // data: nullptr if there is none
  CodeRange range;
};

#ifdef __CUDACC__
inline constexpr int kQuantThreads = 256;  // upper bound of threads per block

template <class T, int kN, bool kWide, CodeKind kKind>
__global__ void __launch_bounds__(kQuantThreads) QuantizeGiven(const GivenScales a) {
  const int64_t items = a.k / kN;
  const bool even = a.scale.last_stride == 0 || a.scale.last_block % kN == 0;  // one scale for a thread's values
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const T* x = static_cast<const T*>(a.x) + a.x_rows[row];
    uint8_t* values = a.values + row * (a.k / (kPacks<kKind> ? 2 : 1));
    const int64_t scale_row = a.scale.Row(row), zero_row = a.zero_point.data ? a.zero_point.Row(row) : 0;
    const float second =
        a.tensor_scale.data ? LoadFloat(a.tensor_scale.data, a.tensor_scale.Row(row), a.tensor_scale.type) : 0.0f;
    for (int64_t item = int64_t(blockIdx.y) * blockDim.x + threadIdx.x; item < items;
         item += int64_t(gridDim.y) * blockDim.x) {
      const int64_t i = item * kN;
      const Vector<T, kN> v = LoadVector<T, kN, kWide>(x, i);
      uint8_t codes[kN];
      float s = 0;
      int32_t zero = 0;
#pragma unroll
      for (int j = 0; j < kN; ++j) {
        if (j == 0 || !even) {
          const int64_t at = a.scale.At(scale_row, i + j);
          s = LoadFloat(a.scale.data, at, a.scale.type);
          if (a.tensor_scale.data) {
            s = 1.0f / (s * second);
            s = s > FLT_MAX ? FLT_MAX : s;  // NaN stays
          }
          if (a.zero_point.data)
            zero = static_cast<const int32_t*>(a.zero_point.data)[a.zero_point.At(zero_row, i + j)];
        }
        const float value = ToFloat(v.v[j]);
        codes[j] = CodeOf<kKind>(a.tensor_scale.data ? value * s : value / s, a.range, zero);
      }
      StoreCodes<kKind, kN, kWide>(values, i, codes);
    }
  }
}

template <class T, int kN, bool kWide, CodeKind kKind>
int32_t RunGiven(const GivenScales& a, cudaStream_t stream) {
  constexpr int64_t kMaxRows = int64_t{1} << 30;
  const int64_t items = a.k / kN, chunks = (items + kQuantThreads - 1) / kQuantThreads;
  const int64_t threads = items < kQuantThreads ? (items + kWarp - 1) / kWarp * kWarp : kQuantThreads;
  const dim3 grid(unsigned(a.rows < kMaxRows ? a.rows : kMaxRows), unsigned(chunks < kMaxGridY ? chunks : kMaxGridY));
  QuantizeGiven<T, kN, kWide, kKind><<<grid, unsigned(threads), 0, stream>>>(a);
  return Launched();
}

template <class T>
int32_t LaunchGiven(GivenScales a, CodeKind kind, void* stream) {
  if (a.rows == 0 || a.k == 0) return 0;
  const bool one =
      a.scale.one() && (!a.zero_point.data || a.zero_point.one()) && (!a.tensor_scale.data || a.tensor_scale.one());
  if (one && a.x_rows.Dense(a.k)) {
    a.k *= a.rows;
    a.rows = 1;
    a.x_rows = DeviceRows();
  }
  constexpr int kN = kLanes<T>;
  const bool wide = Aligned(a.x, a.values) && a.k % kN == 0 && a.x_rows.Aligned(kN);
  const cudaStream_t s = static_cast<cudaStream_t>(stream);
  return WithKind(kind, [&](auto k) {
    constexpr CodeKind kKind = decltype(k)::value;
    return wide ? RunGiven<T, kN, true, kKind>(a, s) : RunGiven < T, kPacks<kKind> ? 2 : 1, false, kKind > (a, s);
  });
}
#endif  // __CUDACC__

}  // namespace lz
