// What the sampling kernels on CUDA share. Masses are integers, so that sums do not depend on the order of threads and
// a draw falls exactly where the sums say.
#pragma once

#include "kernels/cuda_types.h"

namespace lz::sampler {

using Mass = unsigned long long;  // of weight 1: 2^40; a row has at most 2^22 elements

inline constexpr int kRowThreads = 512;  // more would leave a thread 64 registers, and its state in memory
inline constexpr int64_t kMostElements = int64_t{1} << 22;
inline constexpr Mass kAllTies = ~Mass{0};

#ifdef __CUDACC__
inline constexpr int kRowWarps = kRowThreads / kWarp;
inline constexpr float kInfinity = HUGE_VALF;

__device__ inline int LaneOfWarp() { return int(threadIdx.x) % kWarp; }
__device__ inline int WarpOfBlock() { return int(threadIdx.x) / kWarp; }
__device__ inline int WarpsOfBlock() { return int(blockDim.x) / kWarp; }

__device__ inline Mass WarpSum(Mass v) {
  for (int step = kWarp / 2; step > 0; step /= 2) v += __shfl_xor_sync(0xffffffffu, v, step);
  return v;
}
// fold(a, b) over the values of the block, in every thread.
template <class T, class Fold>
__device__ T BlockFold(T v, Fold fold) {
  __shared__ T parts[kRowWarps];
  for (int step = kWarp / 2; step > 0; step /= 2) v = fold(v, __shfl_xor_sync(0xffffffffu, v, step));
  __syncthreads();  // those of the call before have been read
  if (LaneOfWarp() == 0) parts[WarpOfBlock()] = v;
  __syncthreads();
  v = parts[0];
  for (int w = 1; w < WarpsOfBlock(); ++w) v = fold(v, parts[w]);
  return v;
}
template <class T>
__device__ T BlockMax(T v) {
  return BlockFold(v, [](T a, T b) { return a > b ? a : b; });
}
template <class T>
__device__ T BlockMin(T v) {
  return BlockFold(v, [](T a, T b) { return a < b ? a : b; });
}
template <class T>
__device__ T BlockSum(T v) {
  return BlockFold(v, [](T a, T b) { return a + b; });
}
// The sum over the threads before this one, and over all.
__device__ inline Mass BlockSumBefore(Mass v, Mass* total) {
  __shared__ Mass parts[kRowWarps];
  Mass sum = v;
  for (int step = 1; step < kWarp; step *= 2) {
    const Mass other = __shfl_up_sync(0xffffffffu, sum, step);
    if (LaneOfWarp() >= step) sum += other;
  }
  __syncthreads();
  if (LaneOfWarp() == kWarp - 1) parts[WarpOfBlock()] = sum;
  __syncthreads();
  Mass before = sum - v;
  *total = 0;
  for (int w = 0; w < WarpsOfBlock(); ++w) {
    if (w < WarpOfBlock()) before += parts[w];
    *total += parts[w];
  }
  return before;
}

// ops/common/philox.h on the device.
__device__ inline double PhiloxDraw(int64_t seed, int64_t offset, int64_t row, uint32_t slot) {
  const auto o = uint64_t(offset);
  uint32_t k0 = uint32_t(uint64_t(seed)), k1 = uint32_t(uint64_t(seed) >> 32);
  uint32_t c0 = uint32_t(o), c1 = uint32_t(o >> 32), c2 = uint32_t(uint64_t(row)), c3 = slot;
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * c0, p1 = uint64_t{0xCD9E8D57} * c2;
    c0 = uint32_t(p1 >> 32) ^ c1 ^ k0;
    c2 = uint32_t(p0 >> 32) ^ c3 ^ k1;
    c1 = uint32_t(p1);
    c3 = uint32_t(p0);
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return double(uint64_t{c0} << 21 | c1 >> 11) * 0x1p-53;
}
// A caller's number, moved into [0, 1): nobody waits to refuse it.
__device__ inline double Uniform(double u) {
  if (!(u > 0)) return 0;
  return u < 1 ? u : 1 - 0x1p-53;
}
#endif  // __CUDACC__

// A number for each row, or one for all.
struct RowNumber {
  const void* data = nullptr;
  DType type = DType::kF32;
  DeviceRows rows;
  double all = 0;

  RowNumber() = default;
  explicit RowNumber(double value) : all(value) {}
  explicit RowNumber(const lz_tensor& t) : data(Data<void>(t)), type(DTypeOf(t)), rows(ElementsOf(t)) {}
#ifdef __CUDACC__
  __device__ double operator()(int64_t row) const { return data ? LoadDouble(data, rows[row], type) : all; }
#endif
};

}  // namespace lz::sampler
