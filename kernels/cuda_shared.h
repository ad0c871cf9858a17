// Dynamic shared memory beyond the 48 KiB that every launch may have.
#pragma once

#include <atomic>

#include "kernels/cuda.h"

namespace lz {

inline constexpr int kMostDevices = 64;

// Lets a kernel have all the dynamic shared memory that a block of the device can have; returns it in bytes. `prefer`:
// as many blocks on a multiprocessor as its shared memory holds, however small its L1 becomes.
inline int32_t AllowAllShared(const void* kernel, int device, bool prefer) {
  constexpr auto kCarveout = cudaFuncAttributePreferredSharedMemoryCarveout;
  int most = 0;
  cudaFuncAttributes attributes = {};
  if (cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) == cudaSuccess &&
      cudaFuncGetAttributes(&attributes, kernel) == cudaSuccess &&
      (!prefer || cudaFuncSetAttribute(kernel, kCarveout, cudaSharedmemCarveoutMaxShared) == cudaSuccess)) {
    most -= int(attributes.sharedSizeBytes);
    return AllowShared(kernel, most) ? most : 0;
  }
  cudaGetLastError();
  return 0;
}

// Whether a block of the kernel may have `bytes` of dynamic shared memory. The runtime is asked by a kernel's first
// launch on a device alone.
template <auto kKernel, bool kPrefer = false>
bool HasShared(int64_t bytes) {
  static std::atomic<int32_t> known[kMostDevices];  // bytes and one
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess || device >= kMostDevices) {
    cudaGetLastError();
    return false;
  }
  int32_t most = known[device].load(std::memory_order_relaxed);
  if (most == 0) {
    most = AllowAllShared(reinterpret_cast<const void*>(kKernel), device, kPrefer) + 1;
    known[device].store(most, std::memory_order_relaxed);
  }
  return bytes < most;
}

}  // namespace lz
