// Barriers in shared memory for threads that fill it while others read it (mbarrier; waits need sm_90). A barrier goes
// through phases 0, 1, ...: one ends when as many arrivals have come as the barrier was made for.
//   __shared__ Phases full;   if (threadIdx.x == 0) MakePhases(&full, arrivals);   __syncthreads();
//   Arrive(&full), ArriveAsWarp(&full) or ArriveAfterCopies(&full);   WaitForPhase(&full, phase % 2);
// A wait for the phase before the first one, an odd one, ends at once.
#pragma once

#include <cstdint>

#include "kernels/cuda.h"

namespace lz {

struct Phases {
  uint64_t bits;
};

#if defined(LZ_CUDA_EMULATED)
inline void MakePhases(Phases* to, uint32_t arrivals) { emulation::MakePhases(&to->bits, arrivals); }
inline void Arrive(Phases* at) { emulation::Arrive(&at->bits); }
inline void ArriveAfterCopies(Phases* at) { emulation::ArriveAfterCopies(&at->bits); }
inline void WaitForPhase(Phases* of, uint32_t parity) { emulation::WaitForPhase(&of->bits, parity); }
#elif defined(__CUDACC__)
__device__ inline uint32_t AddressOf(const Phases* of) { return uint32_t(__cvta_generic_to_shared(of)); }
__device__ inline void MakePhases(Phases* to, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(AddressOf(to)), "r"(arrivals) : "memory");
}
__device__ inline void Arrive(Phases* at) {
  asm volatile("{ .reg .b64 state; mbarrier.arrive.shared::cta.b64 state, [%0]; }\n" ::"r"(AddressOf(at)) : "memory");
}
// One of the arrivals that the barrier was made for; it comes when all copies that this thread has begun are there.
__device__ inline void ArriveAfterCopies(Phases* at) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];\n" ::"r"(AddressOf(at)) : "memory");
}
__device__ inline void WaitForPhase(Phases* of, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(AddressOf(of)),
      "r"(parity)
      : "memory");
}
#endif

#ifdef __CUDACC__
// One arrival for a warp, after all of its lanes.
__device__ inline void ArriveAsWarp(Phases* at) {
  __syncwarp();
  if (threadIdx.x % kWarp == 0) Arrive(at);
}
#endif

}  // namespace lz
