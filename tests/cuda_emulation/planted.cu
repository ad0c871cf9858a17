#include "tests/cuda_emulation/planted.h"

#include "kernels/cuda_cluster.h"
#include "kernels/cuda_copy.h"

namespace lz::planted {
namespace {

constexpr int kThreads = 128, kRounds = 4;

template <Fault kFault>
__global__ void SumKernel(const int32_t* x, int32_t* out) {
  __shared__ __align__(16) int32_t values[kThreads];
  __shared__ int32_t parts[kThreads / kWarp];
  const int t = threadIdx.x;
  int32_t total = 0;
  for (int round = 0; round < kRounds; ++round) {
    const int32_t* from = x + (blockIdx.x * kRounds + round) * kThreads;
    const int copied = kFault == Fault::kUnwrittenShared ? kThreads / 2 : kThreads;
    if (t % 4 == 0 && t < copied) CopyAsync16(&values[t], from + t);
    CommitCopies();
    if (kFault != Fault::kNoWaitForCopy) WaitForCopies<0>();
    __syncthreads();
    // Another warp's values.
    int32_t v = values[(t + 37) % kThreads];
    for (int step = kWarp / 2; step > 0; step /= 2) {
      const unsigned mask = kFault == Fault::kShuffleBeyondMask && step == 16 ? 0x0fffffffu : 0xffffffffu;
      if (mask >> (t % kWarp) & 1) v += __shfl_xor_sync(mask, v, step);
    }
    if (t % kWarp == 0) parts[t / kWarp] = v;
    if (kFault != Fault::kNoBarrierAfterWrite) __syncthreads();
    for (const int32_t part : parts) total += part;
    const int other = (t + 5) % kThreads;
    total += values[other] - from[other];  // 0, but for values of the next round
    if (kFault != Fault::kNoBarrierBeforeReuse) __syncthreads();
  }
  if (t == 77) out[blockIdx.x] = total;
}

// Each block of a cluster sums the values of the next one.
template <Fault kFault>
__global__ void SumInClusterKernel(const int32_t* x, int32_t* out) {
  __shared__ int32_t values[kThreads];
  const int t = threadIdx.x, block = BlockOfCluster(), next = (block + 1) % BlocksOfCluster();
  const int32_t* const of_next = OfBlock(values, next);
  int32_t total = 0;
  SyncCluster();
  for (int round = 0; round < kRounds; ++round) {
    values[t] = x[(blockIdx.x * kRounds + round) * kThreads + t];
    if (kFault == Fault::kNoClusterBarrier) {
      __syncthreads();
    } else {
      SyncCluster();
    }
    for (int i = t; t < kWarp && i < kThreads; i += kWarp) {
      total += of_next[i];
      __syncwarp();
    }
    if (kFault != Fault::kBlockEndsEarly || round + 1 < kRounds) SyncCluster();
  }
  for (int step = kWarp / 2; step > 0; step /= 2) total += __shfl_xor_sync(0xffffffffu, total, step);
  if (t == 0) out[int(blockIdx.x) - block + next] = total;
}

__global__ void Nothing() {}

template <Fault kFault>
int32_t Run(const int32_t* x, int32_t* out) {
  SumKernel<kFault><<<8, kThreads>>>(x, out);
  return Launched();
}

template <Fault kFault>
int32_t RunInClusters(const int32_t* x, int32_t* out) {
  return CudaCode(LaunchClusters<&SumInClusterKernel<kFault>>(2, 4, kThreads, 0, nullptr, x, out));
}

}  // namespace

int32_t Sum(Fault fault, const int32_t* x, int32_t* out) {
  switch (fault) {
    case Fault::kNoBarrierAfterWrite: return Run<Fault::kNoBarrierAfterWrite>(x, out);
    case Fault::kNoBarrierBeforeReuse: return Run<Fault::kNoBarrierBeforeReuse>(x, out);
    case Fault::kShuffleBeyondMask: return Run<Fault::kShuffleBeyondMask>(x, out);
    case Fault::kUnwrittenShared: return Run<Fault::kUnwrittenShared>(x, out);
    case Fault::kNoWaitForCopy: return Run<Fault::kNoWaitForCopy>(x, out);
    default: return Run<Fault::kNone>(x, out);
  }
}

int32_t SumInClusters(Fault fault, const int32_t* x, int32_t* out) {
  switch (fault) {
    case Fault::kNoClusterBarrier: return RunInClusters<Fault::kNoClusterBarrier>(x, out);
    case Fault::kBlockEndsEarly: return RunInClusters<Fault::kBlockEndsEarly>(x, out);
    default: return RunInClusters<Fault::kNone>(x, out);
  }
}

int32_t LaunchTooLarge() {
  Nothing<<<1, 2048>>>();
  return Launched();
}

}  // namespace lz::planted
