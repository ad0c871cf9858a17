// quantize with scales of runs of values, on CUDA: one pass if a run fits the registers of its lanes, otherwise two.
#pragma once

#include "kernels/quantize/codes_cuda.h"

namespace lz {

struct MadeScales {
  const void* x;    // contiguous
  uint8_t* values;  // contiguous
  void* scale;      // one per run: f32, or e8m0 bytes
  int64_t runs, length;
  int64_t format;
  bool floor;  // the rounding rule of power-of-two scales
  CodeRange range;
};

#ifdef __CUDACC__
inline constexpr int kRunHeld = 4;       // vectors of a run per lane
inline constexpr int kRunThreads = 128;  // threads of a block whose runs take a warp or less
inline constexpr int kRunLanes = 256;    // threads of a run that takes a block

// The bits of the largest magnitude over a run's lanes, in all of them: NaN and infinity are above all numbers.
template <int kRowLanes>
__device__ uint32_t RunMax(uint32_t v) {
  for (int step = (kRowLanes < kWarp ? kRowLanes : kWarp) / 2; step > 0; step /= 2) {
    const uint32_t other = __shfl_xor_sync(0xffffffffu, v, step);
    v = other > v ? other : v;
  }
  if constexpr (kRowLanes > kWarp) {
    constexpr int kWarps = kRowLanes / kWarp;
    __shared__ uint32_t parts[kWarps];
    __syncthreads();  // those of the previous run have been read
    if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = v;
    __syncthreads();
    for (int i = 0; i < kWarps; ++i) v = parts[i] > v ? parts[i] : v;
  }
  return v;
}

// A power of two as its byte.
__device__ inline uint8_t PowerScale(float amax, float largest, float least, bool floor, int exponent) {
  if (isnan(amax)) return 255;
  amax = amax > least ? amax : least;
  if (floor) {
    const int code = int(__float_as_uint(amax) >> 23) - exponent;
    return uint8_t(code < 0 ? 0 : code);
  }
  const uint32_t code = (__float_as_uint(amax * (1.0f / largest)) + 0x7fffffu) >> 23;
  return uint8_t(code < 254 ? code : 254);
}

// The scale of a run from its largest magnitude; lane 0 stores it.
__device__ inline float MakeScale(const MadeScales& a, int64_t run, uint32_t bits, bool first) {
  const float amax = bits < 0x7f800000u ? __uint_as_float(bits) : nanf("");
  const auto power = [&](float largest, float least, int exponent) {
    const uint8_t code = PowerScale(amax, largest, least, a.floor, exponent);
    if (first) static_cast<uint8_t*>(a.scale)[run] = code;
    return LoadFloat(&code, 0, DType::kF8E8M0);
  };
  float scale = 0;
  switch (a.format) {
    case ops::kMXFP8E4M3: return power(448.0f, 1e-4f, 8);
    case ops::kMXFP8E5M2: return power(57344.0f, 1e-4f, 15);
    case ops::kMXFP4: return power(6.0f, 6 * 0x1p-126f, 2);
    case ops::kFP8E4M3: scale = (amax < 1e-4f ? 1e-4f : amax) * (1.0f / 448.0f); break;
    case ops::kFP8E5M2: scale = (amax < 1e-4f ? 1e-4f : amax) * (1.0f / 57344.0f); break;
    default: scale = amax / a.range.high; scale = scale < 0x1p-126f ? 0x1p-126f : scale;
  }
  if (first) static_cast<float*>(a.scale)[run] = scale;
  return scale;
}

template <class T, int kN>
__device__ uint32_t MaxBits(const Vector<T, kN>& v, uint32_t most) {
#pragma unroll
  for (int j = 0; j < kN; ++j) {
    const uint32_t bits = __float_as_uint(ToFloat(v.v[j])) & 0x7fffffffu;
    most = bits > most ? bits : most;
  }
  return most;
}

template <class T, int kN, bool kWide, CodeKind kKind>
__device__ void StoreRun(const MadeScales& a, int64_t begin, int64_t i, const Vector<T, kN>& v, float scale) {
  uint8_t codes[kN];
#pragma unroll
  for (int j = 0; j < kN; ++j) codes[j] = CodeOf<kKind>(ToFloat(v.v[j]) / scale, a.range, 0);
  StoreCodes<kKind, kN, kWide>(a.values + begin / (kPacks<kKind> ? 2 : 1), i * kN, codes);
}

// All lanes of a warp take part in its reductions, also those past the last run.
template <class T, int kN, bool kWide, CodeKind kKind, int kRowLanes>
__global__ void __launch_bounds__(kRowLanes > kWarp ? kRowLanes : kRunThreads) QuantizeRuns(const MadeScales a) {
  const int64_t items = a.length / kN;
  for (int64_t base = int64_t(blockIdx.x) * blockDim.y; base < a.runs; base += int64_t(gridDim.x) * blockDim.y) {
    const int64_t run = base + threadIdx.y, begin = run * a.length;
    const bool active = run < a.runs;
    const int64_t mine = active ? items : 0;
    const T* x = static_cast<const T*>(a.x) + begin;
    Vector<T, kN> held[kRunHeld];
    uint32_t most = 0;
#pragma unroll
    for (int h = 0; h < kRunHeld; ++h) {
      const int64_t i = threadIdx.x + h * kRowLanes;
      if (i < mine) most = MaxBits(held[h] = LoadVector<T, kN, kWide>(x, i * kN), most);
    }
    for (int64_t i = threadIdx.x + kRunHeld * kRowLanes; i < mine; i += kRowLanes) {
      most = MaxBits(LoadVector<T, kN, kWide>(x, i * kN), most);
    }
    most = RunMax<kRowLanes>(most);
    if (!active) continue;
    const float scale = MakeScale(a, run, most, threadIdx.x == 0);
#pragma unroll
    for (int h = 0; h < kRunHeld; ++h) {
      const int64_t i = threadIdx.x + h * kRowLanes;
      if (i < mine) StoreRun<T, kN, kWide, kKind>(a, begin, i, held[h], scale);
    }
    for (int64_t i = threadIdx.x + kRunHeld * kRowLanes; i < mine; i += kRowLanes) {
      StoreRun<T, kN, kWide, kKind>(a, begin, i, LoadVector<T, kN, kWide>(x, i * kN), scale);
    }
  }
}

template <class T, int kN, bool kWide, CodeKind kKind, int kRowLanes>
int32_t RunRuns(const MadeScales& a, cudaStream_t stream) {
  constexpr int kRuns = kRowLanes > kWarp ? 1 : kRunThreads / kRowLanes;
  constexpr int64_t kMaxBlocks = 1 << 20;
  const int64_t blocks = (a.runs + kRuns - 1) / kRuns;
  QuantizeRuns<T, kN, kWide, kKind, kRowLanes>
      <<<unsigned(blocks < kMaxBlocks ? blocks : kMaxBlocks), dim3(kRowLanes, kRuns), 0, stream>>>(a);
  return Launched();
}

template <class T, int kN, bool kWide, CodeKind kKind>
int32_t RunRuns(const MadeScales& a, cudaStream_t stream) {
  const int64_t items = a.length / kN;
  if constexpr (kWide) {
    if (items <= 8) return RunRuns<T, kN, kWide, kKind, 4>(a, stream);
  }
  if (items <= kWarp * kRunHeld) return RunRuns<T, kN, kWide, kKind, kWarp>(a, stream);
  return RunRuns<T, kN, kWide, kKind, kRunLanes>(a, stream);
}

template <class T>
int32_t LaunchRuns(const MadeScales& a, CodeKind kind, void* stream) {
  if (a.runs == 0) return 0;
  constexpr int kN = kLanes<T>;
  const bool wide = Aligned(a.x, a.values) && a.length % kN == 0;
  const cudaStream_t s = static_cast<cudaStream_t>(stream);
  return WithKind(kind, [&](auto k) {
    constexpr CodeKind kKind = decltype(k)::value;
    return wide ? RunRuns<T, kN, true, kKind>(a, s) : RunRuns < T, kPacks<kKind> ? 2 : 1, false, kKind > (a, s);
  });
}
#endif  // __CUDACC__

}  // namespace lz
