// Clusters of thread blocks (from sm_90 on): blocks that run at the same time and read each other's shared memory.
//   LaunchClusters<&Kernel>(clusters, blocks, threads, bytes, stream, arguments...);     blocks: of each cluster
//   In the kernel: write to the block's own shared memory; SyncCluster(); read *OfBlock(&variable, block);
//   SyncCluster() before it is written again, or the block ends. No block writes to another's: the barrier does not
//   wait for that.
#pragma once

#include "kernels/cuda_shared.h"

namespace lz {

inline constexpr int kPortableCluster = 8;  // blocks of a cluster that every device with clusters takes

// Whether the current device has clusters.
inline bool HasClusters() {
  int device = 0, clusters = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&clusters, cudaDevAttrClusterLaunch, device) == cudaSuccess && clusters != 0;
}

#ifdef __CUDACC__
#if defined(LZ_CUDA_EMULATED)
inline int BlockOfCluster() { return emulation::BlockOfCluster(); }
inline int BlocksOfCluster() { return emulation::BlocksOfCluster(); }
inline void SyncCluster() { emulation::WaitForCluster(); }
template <class T>
const T* OfBlock(const T* shared, int block) {
  return static_cast<const T*>(emulation::SharedOf(shared, block));
}
template <auto kKernel, class... P>
cudaError_t LaunchClusters(unsigned clusters, int blocks, int threads, size_t bytes, void* stream, P... arguments) {
  emulation::LaunchClusters(unsigned(blocks), dim3(clusters * unsigned(blocks)), dim3(unsigned(threads)), bytes, stream,
                            [=] { kKernel(arguments...); });
  return cudaGetLastError();
}
#else
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
__device__ inline int BlockOfCluster() { return int(__clusterRelativeBlockRank()); }
__device__ inline int BlocksOfCluster() { return int(__clusterSizeInBlocks()); }
// A barrier of all threads of the cluster: what they wrote to shared memory of their own block is seen after it. The
// barrier's own release would wait for global memory too.
__device__ inline void SyncCluster() {
  asm volatile(
      "fence.release.sync_restrict::shared::cta.cluster;\n"
      "barrier.cluster.arrive.relaxed.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;\n" ::
          : "memory");
}
// The same variable in the shared memory of another block of the cluster.
template <class T>
__device__ const T* OfBlock(const T* shared, int block) {
  return static_cast<const T*>(__cluster_map_shared_rank(shared, unsigned(block)));
}
#else  // never launched there
__device__ inline int BlockOfCluster() { return 0; }
__device__ inline int BlocksOfCluster() { return 1; }
__device__ inline void SyncCluster() { __trap(); }
template <class T>
__device__ const T* OfBlock(const T* shared, int) {
  return shared;
}
#endif

template <auto kKernel, class... P>
cudaError_t LaunchClusters(unsigned clusters, int blocks, int threads, size_t bytes, void* stream, P... arguments) {
  if (!HasShared<kKernel, true>(int64_t(bytes))) return cudaErrorInvalidValue;
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {unsigned(blocks), 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(clusters * unsigned(blocks));
  config.blockDim = dim3(unsigned(threads));
  config.dynamicSmemBytes = bytes;
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &cluster;
  config.numAttrs = 1;
  void* pointers[] = {&arguments...};
  const cudaError_t launched = cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kKernel), pointers);
  return launched == cudaSuccess ? launched : cudaGetLastError();  // cleared: the next launch asks for its own
}
#endif
#endif  // __CUDACC__

}  // namespace lz
