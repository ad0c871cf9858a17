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
  kNoWaitForPhase,    // threads read what others have not copied yet
  kFreedTooEarly,     // a thread says that it has read what it reads later
  kArriveTooEarly,    // a phase ends before its copies are there
  kNoWaitForProduct,  // a sum is read before the product was made
  kSpoiledProduct,    // a matrix is overwritten before the product was made
};

// out[b] = the sums of x[b * 128 ...] over 4 rounds of 128 values, 8 blocks. 0, or the launch's error.
int32_t Sum(Fault fault, const int32_t* x, int32_t* out);
// The same in 2 clusters of 4 blocks, with the faults of clusters.
int32_t SumInClusters(Fault fault, const int32_t* x, int32_t* out);
// The same; half of the threads copy, the others sum, a phase for each round.
int32_t SumInPhases(Fault fault, const int32_t* x, int32_t* out);
// Products of warpgroups: the row sums of 64 rows of 64 numbers that are those of their row. The number of wrong ones.
int32_t WrongProducts(Fault fault);
// A launch that no device takes; its error.
int32_t LaunchTooLarge();

}  // namespace lz::planted
