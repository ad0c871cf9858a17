// CUDA kernels as C++ of the host: included before each source that translate.py made. One block runs after another, or
// one cluster, its threads as coroutines of one host thread that change at barriers and warp operations, in an order
// drawn again each time; warps and blocks of a cluster get ahead of others. Shared memory is 0xff bytes before a
// block's first thread and after its last one, registers are what the host leaves there.
//   A missing barrier, a shuffle from a lane that is not there, unwritten shared memory, that of a block that does not
//   run, a launch beyond the limits of a device or a barrier that some threads do not reach give wrong results or end
//   the test with a message.
// Not emulated: tensor memory, waits for a block of another cluster. Code that needs PTX has another form under
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
#undef __grid_constant__
#define __grid_constant__

inline uint3 threadIdx, blockIdx;
inline dim3 blockDim, gridDim;
inline constexpr int warpSize = 32;

namespace lz::emulation {

inline constexpr uint32_t kAllLanes = ~0u;

inline constexpr unsigned kMaxCluster = 16;

// Runs the kernel; where the device would refuse the launch, cudaGetLastError says so. `cluster`: blocks along x.
void LaunchClusters(unsigned cluster, dim3 grid, dim3 block, size_t dynamic_bytes, void* stream,
                    const std::function<void()>& kernel);
inline void Launch(dim3 grid, dim3 block, size_t dynamic_bytes, void* stream, const std::function<void()>& kernel) {
  LaunchClusters(1, grid, block, dynamic_bytes, stream, kernel);
}
inline void Launch(dim3 grid, dim3 block, const std::function<void()>& kernel) {
  Launch(grid, block, 0, nullptr, kernel);
}
inline void Launch(dim3 grid, dim3 block, size_t bytes, const std::function<void()>& kernel) {
  Launch(grid, block, bytes, nullptr, kernel);
}

// Waits for the threads of the block, those of the cluster, or the lanes of `mask`. `what` names the operation: lanes
// wait for the same.
void WaitForBlock();
void WaitForCluster();
void WaitForLanes(uint32_t mask, const char* what);
int Lane();
// What each lane of the warp published last; 0xff bytes for a lane that is not in `mask` or has ended.
void Publish(uint64_t bits);
uint64_t PublishedBy(int lane, uint32_t mask);
uint64_t PublishedByThread(int thread);
int ThreadsOfBlock();

int BlockOfCluster();
int BlocksOfCluster();

// A declaration of shared memory: `bytes` for each block of a cluster, kMaxCluster times. Where the first block reaches
// it, it becomes 0xff bytes.
void BeginShared(void* memory, size_t bytes);
void* DynamicShared();
// Where another block of the cluster has what `memory` is in this one.
const void* SharedOf(const void* memory, int block);

// cp.async: the bytes arrive when they are waited for, not before.
void CopyLater(void* to, const void* from, size_t bytes, size_t real_bytes);
void CommitCopies();
void WaitForCopies(int groups_left);

// mbarrier. Copies whose arrival is awaited come at some time before it.
void MakePhases(uint64_t* barrier, uint32_t arrivals);
void Arrive(uint64_t* barrier);
void ArriveAfterCopies(uint64_t* barrier);
void WaitForPhase(const uint64_t* barrier, uint32_t parity);

// Work of a thread that is done when it is waited for, not before: products of a warpgroup.
void WorkLater(std::function<void()> work);
void CommitWork();
void WaitForWork(int groups_left);

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

#include "tests/cuda_emulation/scalars.h"
