// The threads of a row: a block, which reads the row from global memory, or a cluster of blocks, each of which keeps
// its share of the row in shared memory. Both compute the same, bit for bit: what they add up is integers.
#pragma once

#include "kernels/cuda_cluster.h"
#include "kernels/sampling/common/block_cuda.h"

namespace lz::sampler {

inline constexpr int kMostBlocks = 16;  // of a row

// How a launch divides its rows.
struct RowLaunch {
  int blocks;     // of a row; 1: it is read from global memory
  int64_t share;  // elements of a block, a multiple of a vector's, or all
  size_t bytes;   // of shared memory for them, wherever the row begins
};

// More blocks for few rows, until they fill the device; as few as shared memory allows for many. `static_bytes`: what
// the kernel has of shared memory without the share.
inline RowLaunch DivideRows(int64_t rows, int64_t n, int element_bytes, int64_t static_bytes) {
  constexpr int64_t kEnough = 256;        // blocks: two on each multiprocessor
  constexpr int64_t kLeast = 2048;        // elements of a block
  constexpr int64_t kTwoFit = 66 * 1024;  // bytes of a share that leave room for another block
  const RowLaunch whole = {1, n, 0};
  int device = 0, most = 0;
  if (n < 2 * kLeast || !HasClusters() || cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) != cudaSuccess) {
    return whole;
  }
  const auto divided = [&](int blocks) {
    const int64_t lanes = kVectorBytes / element_bytes, vectors = (n + lanes - 1) / lanes;
    const int64_t share = (vectors + blocks - 1) / blocks * lanes;
    return RowLaunch{blocks, share, size_t(share * element_bytes + kVectorBytes)};
  };
  RowLaunch launch = divided(2);
  while (launch.blocks < kPortableCluster &&
         (launch.bytes > kTwoFit || (rows * launch.blocks < kEnough && launch.share >= 2 * kLeast))) {
    launch = divided(2 * launch.blocks);
  }
  return int64_t(launch.bytes) + static_bytes <= most ? launch : whole;
}

#ifdef __CUDACC__
template <bool kCluster>
class Team {
 public:
  __device__ Team() : block(kCluster ? BlockOfCluster() : 0), blocks(kCluster ? BlocksOfCluster() : 1) {}

  const int block, blocks;  // which of the row's this one is, and how many they are: a power of two

  // A barrier of all threads of the row, also the first thing and the last that they do.
  __device__ void Sync() const {
    if constexpr (kCluster) {
      SyncCluster();
    } else {
      __syncthreads();
    }
  }
  // `shared` of one of the row's blocks, to be read.
  template <class T>
  __device__ const T* At(const T* shared, int of_block) const {
    if constexpr (kCluster) {
      return OfBlock(shared, of_block);
    } else {
      return shared;
    }
  }
  // What each block has, in the order of blocks; every thread of a block passes the same. A barrier of all threads.
  template <class V>
  __device__ const V* Gather(const V& mine) {
    __shared__ V own[2], all[kCluster ? kMostBlocks : 1];
    if constexpr (!kCluster) {
      __syncthreads();  // what the call before returned has been read
      if (threadIdx.x == 0) all[0] = mine;
    } else {
      turn_ ^= 1;  // others may still read what the call before wrote
      if (threadIdx.x == 0) own[turn_] = mine;
      Sync();
      if (int(threadIdx.x) < blocks) all[threadIdx.x] = *At(&own[turn_], int(threadIdx.x));
    }
    __syncthreads();
    return all;
  }
  // fold(a, b) over what the first lane of each warp passes, in a fixed order, for every thread.
  template <class V, class Fold>
  __device__ V FoldWarps(const V& mine, Fold fold) {
    __shared__ V of_warps[kRowWarps];
    if (LaneOfWarp() == 0) of_warps[WarpOfBlock()] = mine;
    __syncthreads();
    V all = of_warps[0];
    for (int w = 1; w < WarpsOfBlock(); ++w) all = fold(all, of_warps[w]);
    const V* of_blocks = Gather(all);  // a barrier: `of_warps` has been read
    all = of_blocks[0];
    for (int b = 1; b < blocks; ++b) all = fold(all, of_blocks[b]);
    return all;
  }

 private:
  int turn_ = 0;
};
#endif  // __CUDACC__

}  // namespace lz::sampler
