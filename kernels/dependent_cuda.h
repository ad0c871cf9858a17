// Programmatic dependent launches (from sm_90 on): a kernel begins while those before it in its stream still end, and
// waits inside for them; before that it may do what no earlier kernel can change.
// docs/design/0046-dependent-launches.md
//   __global__ void K(...) { FetchIntoL2(weights); WaitForEarlierKernels(); LetLaterKernelsBegin(); ... }
//   return LaunchDependent(&K, {.grid = g, .block = b, .bytes = n, .stream = stream}, arguments...);
// Every thread of such a kernel waits before it reads or writes memory that another kernel may write or read: whoever
// waits for this kernel relies on it, since the end of a grid says that the grid before has ended only if it waited.
#pragma once

#include <type_traits>

#include "kernels/cuda_shared.h"

namespace lz {

inline constexpr int kFirstMajorWithDependents = 9;

struct DependentShape {
  dim3 grid, block;
  size_t bytes = 0;  // of dynamic shared memory
  void* stream = nullptr;
};

// Of this thread's launches. Off until it asks (lz_cuda_dependent_launches), as captured steps do that it makes faster.
inline bool& DependentsAllowed() {
  thread_local bool allowed = false;
  return allowed;
}

// Whether kernels that this thread launches on the current device begin before those before them have ended. What a
// device can is asked once.
inline bool HasDependentLaunches() {
  static std::atomic<int8_t> known[kMostDevices];  // 1: no, 2: yes
  int device = 0;
  if (!DependentsAllowed()) return false;
  if (cudaGetDevice(&device) != cudaSuccess || device >= kMostDevices) {
    cudaGetLastError();
    return false;
  }
  int8_t has = known[device].load(std::memory_order_relaxed);
  if (has == 0) {
    int major = 0;
    const bool known_major = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess;
    has = known_major && major >= kFirstMajorWithDependents ? 2 : 1;
    known[device].store(has, std::memory_order_relaxed);
  }
  return has == 2;
}

#if defined(LZ_CUDA_EMULATED)
inline void WaitForEarlierKernels() {}
inline void LetLaterKernelsBegin() {}
inline void FetchIntoL2(const void*, uint32_t) {}
template <class... K>
int32_t LaunchDependent(void (*kernel)(K...), const DependentShape& of, std::type_identity_t<K>... arguments) {
  emulation::Launch(of.grid, of.block, of.bytes, of.stream, [=] { kernel(arguments...); });
  return Launched();
}
#elif defined(__CUDACC__)
// Returns when all grids before this one have ended and what they wrote is seen.
__device__ inline void WaitForEarlierKernels() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// The grid after this one may begin once every block has called it or ended.
__device__ inline void LetLaterKernelsBegin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// Brings bytes into the second-level cache, where writes of other kernels arrive too: allowed before the wait. Address
// and number are multiples of 16.
__device__ inline void FetchIntoL2(const void* from, uint32_t bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(from)), "r"(bytes));
#endif
}

template <class... K>
int32_t LaunchDependent(void (*kernel)(K...), const DependentShape& of, std::type_identity_t<K>... arguments) {
  cudaLaunchAttribute attributes[1] = {};
  cudaLaunchConfig_t config = {};
  config.gridDim = of.grid;
  config.blockDim = of.block;
  config.dynamicSmemBytes = of.bytes;
  config.stream = static_cast<cudaStream_t>(of.stream);
  config.attrs = attributes;
  if (HasDependentLaunches()) {
    auto& dependent = attributes[config.numAttrs++];
    dependent.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    dependent.val.programmaticStreamSerializationAllowed = 1;
  }
  void* pointers[] = {&arguments...};
  const cudaError_t launched = cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel), pointers);
  if (launched != cudaSuccess) cudaGetLastError();  // cleared: the next launch asks for its own
  return CudaCode(launched);
}
#endif

}  // namespace lz
