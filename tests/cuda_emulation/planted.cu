#include "tests/cuda_emulation/planted.h"

#include "kernels/cuda_cluster.h"
#include "kernels/cuda_copy.h"
#include "kernels/phases_cuda.h"
#include "kernels/wgmma_cuda.h"

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

// Two warps copy the values of each round to one of two stages, two sum them.
template <Fault kFault>
__global__ void SumInPhasesKernel(const int32_t* x, int32_t* out) {
  constexpr int kStages = 2;
  __shared__ __align__(16) int32_t values[kStages][kThreads];
  __shared__ Phases there[kStages], free[kStages];
  const int t = threadIdx.x, copying = kThreads / 2;
  if (t == 0) {
    for (int i = 0; i < kStages; ++i) {
      MakePhases(&there[i], uint32_t(copying));
      MakePhases(&free[i], uint32_t(kThreads - copying));
    }
  }
  __syncthreads();
  int32_t total = 0;
  for (uint32_t round = 0; round < kRounds; ++round) {
    const uint32_t stage = round % kStages, parity = round / kStages % 2;
    if (t < copying) {
      WaitForPhase(&free[stage], parity ^ 1);
      const int at = 4 * t;
      if (at < kThreads) CopyAsync16(&values[stage][at], x + (blockIdx.x * kRounds + round) * kThreads + at);
      if (kFault == Fault::kArriveTooEarly) {
        CommitCopies();
        Arrive(&there[stage]);
      } else {
        ArriveAfterCopies(&there[stage]);
      }
    } else {
      if (kFault != Fault::kNoWaitForPhase || round + 1 < kRounds) WaitForPhase(&there[stage], parity);
      if (kFault == Fault::kFreedTooEarly) Arrive(&free[stage]);
      __syncwarp();
      total += values[stage][t] + values[stage][t - copying];
      if (kFault != Fault::kFreedTooEarly) Arrive(&free[stage]);
    }
  }
  if (t < copying) {
    CommitCopies();
    WaitForCopies<0>();
    return;
  }
  __shared__ int32_t all;
  if (t == copying) all = 0;
  __syncthreads();
  atomicAdd(&all, total);
  __syncthreads();
  if (t == kThreads - 1) out[blockIdx.x] = all;
}

// a: row r has 64 times the number r; b: ones.
template <Fault kFault>
__global__ void ProductKernel(float* out) {
#ifdef LZ_HAS_WARPGROUPS
  extern __shared__ __align__(1024) char panels[];
  char *const a = panels, *const b = panels + 64 * kPanelRow;
  const int t = threadIdx.x;
  const auto write = [&](int of_row) {
    for (int i = t; i < 64 * kPanel; i += kWarpgroup) {
      const int row = i / kPanel, column = i % kPanel, at = PanelAt(row, column / 8) + column % 8 * 2;
      *reinterpret_cast<__half*>(a + at) = __float2half_rn(float(row * of_row));
      *reinterpret_cast<__half*>(b + at) = __float2half_rn(1.0f);
    }
  };
  write(1);
  __syncthreads();
  float sum[8][4];
  for (auto& four : sum) four[0] = four[1] = four[2] = four[3] = -1;
  CopiesAreForProducts();
  BeginProducts();
  for (int k = 0; k < kPanel; k += 16) {
    MultiplyShared<__half, 64>(sum, PanelMatrix(a + 2 * k), PanelMatrix(b + 2 * k), k > 0);
  }
  CommitProducts();
  if (kFault == Fault::kSpoiledProduct) write(2);
  if (kFault != Fault::kNoWaitForProduct) WaitForProducts<0>();
  const int row = t / kWarp * 16 + t % kWarp / 4;
  for (int i = 0; i < 4; ++i) out[(row + i / 2 * 8) * 8 + t % 4 * 2 + i % 2] = sum[3][i];
  WaitForProducts<0>();
#endif
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

int32_t SumInPhases(Fault fault, const int32_t* x, int32_t* out) {
  switch (fault) {
    case Fault::kNoWaitForPhase: SumInPhasesKernel<Fault::kNoWaitForPhase><<<8, kThreads>>>(x, out); break;
    case Fault::kFreedTooEarly: SumInPhasesKernel<Fault::kFreedTooEarly><<<8, kThreads>>>(x, out); break;
    case Fault::kArriveTooEarly: SumInPhasesKernel<Fault::kArriveTooEarly><<<8, kThreads>>>(x, out); break;
    default: SumInPhasesKernel<Fault::kNone><<<8, kThreads>>>(x, out); break;
  }
  return Launched();
}

int32_t WrongProducts(Fault fault) {
  constexpr int kBytes = 2 * 64 * kPanelRow;
  float sums[64 * 8] = {}, *const out = sums;
  switch (fault) {
    case Fault::kNoWaitForProduct: ProductKernel<Fault::kNoWaitForProduct><<<1, kWarpgroup, kBytes>>>(out); break;
    case Fault::kSpoiledProduct: ProductKernel<Fault::kSpoiledProduct><<<1, kWarpgroup, kBytes>>>(out); break;
    default: ProductKernel<Fault::kNone><<<1, kWarpgroup, kBytes>>>(out); break;
  }
  int32_t wrong = Launched() != 0 ? 64 * 8 : 0;
  for (int i = 0; i < 64 * 8; ++i) wrong += out[i] != float(i / 8 * kPanel);
  return wrong;
}

int32_t LaunchTooLarge() {
  Nothing<<<1, 2048>>>();
  return Launched();
}

}  // namespace lz::planted
