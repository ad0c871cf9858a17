// Small kernels with the faults that the emulation must show, and the same without.
#pragma once

#include <cstdint>

namespace lz::planted {

enum class Fault {
  kNone,
  kNoBarrierAfterWrite,   // threads read what others have not written yet
  kNoBarrierBeforeReuse,  // a thread overwrites what others have not read yet
  kShuffleBeyondMask,     // from a lane that takes no part
  kUnwrittenShared,
  kNoWaitForCopy,     // asynchronous copies are read before they arrived
  kNoClusterBarrier,  // threads read what another block has not written yet
  kBlockEndsEarly,    // a block ends while another reads its shared memory
};

// out[b] = the sums of x[b * 128 ...] over 4 rounds of 128 values, 8 blocks. 0, or the launch's error.
int32_t Sum(Fault fault, const int32_t* x, int32_t* out);
// The same in 2 clusters of 4 blocks, with the faults of clusters.
int32_t SumInClusters(Fault fault, const int32_t* x, int32_t* out);
// A launch that no device takes; its error.
int32_t LaunchTooLarge();

}  // namespace lz::planted
