// CUDA kernels as C++ of the host: included before each source that translate.py made. One block runs after another,
// its threads as coroutines of one host thread that change at barriers and warp operations, in an order drawn anew
// each time. Shared memory begins as 0xff bytes in every block, registers are what the host leaves there.
//   A missing barrier, a shuffle from a lane that is not there, unwritten shared memory, a launch beyond the limits of
//   a device or a barrier that some threads do not reach give wrong results or end the test with a message.
// Not emulated: clusters, tensor memory, waits for another block. Code that needs PTX has another form under
// LZ_CUDA_EMULATED.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <type_traits>

#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __global__
#define __global__

inline uint3 threadIdx, blockIdx;
inline dim3 blockDim, gridDim;
inline constexpr int warpSize = 32;

namespace lz::emulation {

inline constexpr uint32_t kAllLanes = ~0u;

// Runs the kernel; where the device would refuse the launch, cudaGetLastError says so.
void Launch(dim3 grid, dim3 block, size_t dynamic_bytes, void* stream, const std::function<void()>& kernel);
inline void Launch(dim3 grid, dim3 block, const std::function<void()>& kernel) {
  Launch(grid, block, 0, nullptr, kernel);
}
inline void Launch(dim3 grid, dim3 block, size_t bytes, const std::function<void()>& kernel) {
  Launch(grid, block, bytes, nullptr, kernel);
}

// Waits for the threads of the block, or for the lanes of `mask`. `what` names the operation: lanes wait for the same.
void WaitForBlock();
void WaitForLanes(uint32_t mask, const char* what);
int Lane();
// What each lane of the warp published last; 0xff bytes for a lane that is not in `mask` or has ended.
void Publish(uint64_t bits);
uint64_t PublishedBy(int lane, uint32_t mask);
uint64_t PublishedByThread(int thread);
int ThreadsOfBlock();

// Where a block first reaches a declaration of shared memory it becomes 0xff bytes.
void BeginShared(void* memory, size_t bytes);
void* DynamicShared();

// cp.async: the bytes arrive when they are waited for, not before.
void CopyLater(void* to, const void* from, size_t bytes, size_t real_bytes);
void CommitCopies();
void WaitForCopies(int groups_left);

template <class T>
uint64_t Bits(T value) {
  static_assert(sizeof(T) <= 8);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  return bits;
}
template <class T>
T FromBits(uint64_t bits) {
  T value;
  std::memcpy(static_cast<void*>(&value), &bits, sizeof(T));
  return value;
}

// `from`: the lane whose value is returned.
template <class T>
T Shuffle(uint32_t mask, T value, int from, const char* what) {
  Publish(Bits(value));
  WaitForLanes(mask, what);
  const T result = FromBits<T>(PublishedBy(from, mask));
  WaitForLanes(mask, what);
  return result;
}
// fold(result, the value of each lane of the mask)
template <class T, class R, class Fold>
R FoldLanes(uint32_t mask, T value, R result, const char* what, Fold fold) {
  Publish(Bits(value));
  WaitForLanes(mask, what);
  for (int lane = 0; lane < warpSize; ++lane) {
    if (mask >> lane & 1) result = fold(result, FromBits<T>(PublishedBy(lane, mask)), lane);
  }
  WaitForLanes(mask, what);
  return result;
}
template <class R, class Fold>
R FoldBlock(uint64_t value, R result, Fold fold) {
  Publish(value);
  WaitForBlock();
  for (int i = 0; i < ThreadsOfBlock(); ++i) result = fold(result, PublishedByThread(i));
  WaitForBlock();
  return result;
}
// Returns what was there. Threads change at barriers alone: every access is atomic.
template <class T, class F>
T Exchange(T* at, F f) {
  const T before = *at;
  *at = f(before);
  return before;
}

}  // namespace lz::emulation

inline void __syncthreads() { lz::emulation::WaitForBlock(); }
inline int __syncthreads_or(int p) {
  return lz::emulation::FoldBlock(p != 0, 0, [](int r, uint64_t v) { return r | int(v); });
}
inline int __syncthreads_and(int p) {
  return lz::emulation::FoldBlock(p != 0, 1, [](int r, uint64_t v) { return r & int(v); });
}
inline int __syncthreads_count(int p) {
  return lz::emulation::FoldBlock(p != 0, 0, [](int r, uint64_t v) { return r + int(v); });
}
inline void __syncwarp(unsigned mask = ~0u) { lz::emulation::WaitForLanes(mask, "__syncwarp"); }
[[noreturn]] inline void __trap() { std::abort(); }
inline void __threadfence() {}
inline void __threadfence_block() {}

template <class T>
T __shfl_sync(unsigned mask, T v, int lane, int width = warpSize) {
  const int first = lz::emulation::Lane() & ~(width - 1);
  return lz::emulation::Shuffle(mask, v, first + (lane & (width - 1)), "__shfl_sync");
}
template <class T>
T __shfl_xor_sync(unsigned mask, T v, int step, int width = warpSize) {
  const int mine = lz::emulation::Lane(), from = mine ^ step;
  return lz::emulation::Shuffle(mask, v, from >= (mine & ~(width - 1)) + width ? mine : from, "__shfl_xor_sync");
}
template <class T>
T __shfl_up_sync(unsigned mask, T v, unsigned step, int width = warpSize) {
  const int mine = lz::emulation::Lane(), from = mine - int(step);
  return lz::emulation::Shuffle(mask, v, from < (mine & ~(width - 1)) ? mine : from, "__shfl_up_sync");
}
template <class T>
T __shfl_down_sync(unsigned mask, T v, unsigned step, int width = warpSize) {
  const int mine = lz::emulation::Lane(), from = mine + int(step);
  return lz::emulation::Shuffle(mask, v, from >= (mine & ~(width - 1)) + width ? mine : from, "__shfl_down_sync");
}
inline unsigned __ballot_sync(unsigned mask, int p) {
  return lz::emulation::FoldLanes(mask, p != 0, 0u, "__ballot_sync",
                                  [](unsigned r, bool v, int lane) { return r | unsigned(v) << lane; });
}
inline int __any_sync(unsigned mask, int p) { return __ballot_sync(mask, p) != 0; }
inline int __all_sync(unsigned mask, int p) { return __ballot_sync(mask, p) == mask; }
template <class T>
unsigned __match_any_sync(unsigned mask, T value) {
  return lz::emulation::FoldLanes(mask, value, 0u, "__match_any_sync",
                                  [=](unsigned r, T v, int lane) { return r | unsigned(v == value) << lane; });
}
#define LZ_EMULATED_REDUCE(name, T, first, expression)                            \
  inline T __reduce_##name##_sync(unsigned mask, T value) {                       \
    return lz::emulation::FoldLanes(mask, value, T(first), "__reduce_sync",       \
                                    [](T a, T b, int) { return T(expression); }); \
  }
LZ_EMULATED_REDUCE(add, unsigned, 0, a + b)
LZ_EMULATED_REDUCE(add, int, 0, a + b)
LZ_EMULATED_REDUCE(max, unsigned, 0, std::max(a, b))
LZ_EMULATED_REDUCE(max, int, INT32_MIN, std::max(a, b))
LZ_EMULATED_REDUCE(min, unsigned, UINT32_MAX, std::min(a, b))
LZ_EMULATED_REDUCE(min, int, INT32_MAX, std::min(a, b))
LZ_EMULATED_REDUCE(or, unsigned, 0, a | b)
LZ_EMULATED_REDUCE(and, unsigned, UINT32_MAX, a& b)
#undef LZ_EMULATED_REDUCE

template <class T>
T atomicAdd(T* at, std::type_identity_t<T> v) {
  return lz::emulation::Exchange(at, [v](T a) { return T(a + v); });
}
template <class T>
T atomicMax(T* at, std::type_identity_t<T> v) {
  return lz::emulation::Exchange(at, [v](T a) { return std::max(a, v); });
}
template <class T>
T atomicMin(T* at, std::type_identity_t<T> v) {
  return lz::emulation::Exchange(at, [v](T a) { return std::min(a, v); });
}
template <class T>
T atomicOr(T* at, std::type_identity_t<T> v) {
  return lz::emulation::Exchange(at, [v](T a) { return T(a | v); });
}
template <class T>
T atomicExch(T* at, std::type_identity_t<T> v) {
  return lz::emulation::Exchange(at, [v](T) { return v; });
}
template <class T>
T atomicCAS(T* at, std::type_identity_t<T> wanted, std::type_identity_t<T> v) {
  return lz::emulation::Exchange(at, [=](T a) { return a == wanted ? v : a; });
}
inline unsigned atomicInc(unsigned* at, unsigned most) {
  return lz::emulation::Exchange(at, [most](unsigned a) { return a >= most ? 0 : a + 1; });
}

template <class T>
T __ldg(const T* at) {
  return *at;
}
template <class T>
T __ldcs(const T* at) {
  return *at;
}
template <class T>
void __stcs(T* at, std::type_identity_t<T> v) {
  *at = v;
}
inline unsigned __float_as_uint(float v) { return std::bit_cast<unsigned>(v); }
inline int __float_as_int(float v) { return std::bit_cast<int>(v); }
inline float __uint_as_float(unsigned v) { return std::bit_cast<float>(v); }
inline float __int_as_float(int v) { return std::bit_cast<float>(v); }
inline int __popc(unsigned v) { return std::popcount(v); }
inline int __popcll(unsigned long long v) { return std::popcount(v); }
inline int __clz(int v) { return std::countl_zero(unsigned(v)); }
inline int __clzll(long long v) { return std::countl_zero(static_cast<unsigned long long>(v)); }
inline int __ffs(int v) { return v == 0 ? 0 : std::countr_zero(unsigned(v)) + 1; }
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned(uint64_t(a) * b >> 32); }
inline unsigned long long __float2ull_rn(float v) { return static_cast<unsigned long long>(std::nearbyint(v)); }
inline unsigned long long __double2ull_rn(double v) { return static_cast<unsigned long long>(std::nearbyint(v)); }
inline float __expf(float v) { return std::exp(v); }
inline float __logf(float v) { return std::log(v); }
inline float __fdividef(float a, float b) { return a / b; }
inline float rsqrtf(float v) { return 1.0f / std::sqrt(v); }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
using std::isfinite;
using std::isinf;
using std::isnan;
using std::max;
using std::min;
