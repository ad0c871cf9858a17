// The value at which the descending order of a row reaches a count or a mass, on CUDA, without a sort: a histogram of
// values in 2048 equal steps between two bounds, then one of the step that the order reaches, until it holds one value
// or is needed whole. Steps of values, not of bits: the elements of a usual row spread over them, so that atomic
// additions seldom meet. Every step is shorter than the one before, by a factor that is 2048 for even values.
#pragma once

#include "kernels/sampling/common/draw_cuda.h"

namespace lz::sampler {

#ifdef __CUDACC__

// Keep what is above `value`, and the first `ties` elements equal to it.
struct Threshold {
  float value;
  Mass ties;
};

inline constexpr int kBins = 2048, kMostRounds = 64;

// The bins between lo and hi: 0 at lo, never less for a larger value, not 0 at a hi that is not lo. Without a branch:
// bounds beyond FP32's range from each other are halved, of subnormal distance the factor becomes two.
struct Steps {
  float lo, hi;

  __device__ Steps(float lo, float hi) : lo(lo), hi(hi) {
    part_ = hi - lo < kInfinity ? 1.0f : 0.5f;
    begin_ = lo * part_;
    const float width = hi * part_ - begin_;
    first_ = width < 1e-30f ? 0x1p64f : 1.0f;
    second_ = width > 0 ? float(kBins - 1) / (width * first_) : 0.0f;
  }
  __device__ int BinOf(float v) const { return int(__fmaf_rn(v, part_, -begin_) * first_ * second_); }

 private:
  float part_, begin_, first_, second_;
};

// Floats in their order as integers.
__device__ inline uint32_t KeyOf(float v) {
  const uint32_t bits = __float_as_uint(v);
  return bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}
__device__ inline float OfKey(uint32_t key) { return __uint_as_float(key ^ (key >> 31 ? 0x80000000u : 0xffffffffu)); }

// The key of the smallest float between the steps' bounds whose bin is at least `bin`. Each lane of a warp tries a key,
// so that seven rounds are enough.
__device__ inline uint32_t FirstKeyOf(int bin, const Steps& steps) {
  uint32_t low = KeyOf(steps.lo), high = KeyOf(steps.hi);
  while (low < high) {
    const uint32_t step = (high - low) / kWarp + 1, mine = low + step * uint32_t(LaneOfWarp());
    const bool reached = mine >= high || steps.BinOf(OfKey(mine)) >= bin;
    const uint32_t lanes = __ballot_sync(0xffffffffu, reached),
                   below = lanes == 0 ? kWarp : uint32_t(__ffs(int(lanes)) - 1);
    const uint32_t at = low + step * below;
    if (at < high) high = at;
    if (below > 0) low += step * (below - 1) + 1;
  }
  return low;
}

// Of the largest float in a bin that is not empty.
__device__ inline uint32_t LastKeyOf(int bin, const Steps& steps) {
  return bin >= steps.BinOf(steps.hi) ? KeyOf(steps.hi) : FirstKeyOf(bin + 1, steps) - 1;
}

// Masses, or counts, in halves: shared memory adds 32 bits at once, and 64 by trial.
struct Bins {
  uint32_t low[kBins], high[kBins];

  __device__ void Add(int b, Mass mass) {
    const auto part = uint32_t(mass);
    const uint32_t carry = atomicAdd(&low[b], part) + part < part, rest = uint32_t(mass >> 32) + carry;
    if (rest != 0) atomicAdd(&high[b], rest);
  }
  __device__ void Count(int b) { atomicAdd(&low[b], 1u); }
  __device__ Mass MassOf(int b) const { return Mass(high[b]) << 32 | low[b]; }
  __device__ void Clear() {
    for (int b = int(threadIdx.x); b < kBins; b += kRowThreads) low[b] = high[b] = 0;
  }
};
struct FoundBin {
  int bin;
  Mass above, mass;  // above: of the bins after it
};
// What the order must reach: a mass, or if that is 0, a part of the mass of all elements that take part.
struct Goal {
  Mass mass;
  double part;

  __device__ static Mass Of(double part, Mass total) {
    const Mass mass = Mass(ceil(part * double(total)));
    return mass < 1 ? 1 : mass > total ? total : mass;
  }
};

// The bin where the order, from the last bin down, reaches the goal; `above`: the mass of what is above all bins. Each
// block of the row has bins of its own elements, and sums a slice of them over all blocks; the first block has the last
// slice. Afterwards the bins are clear.
template <bool kCluster>
__device__ FoundBin FindBin(Team<kCluster>& team, Bins& bins, Mass above, Goal& goal) {
  constexpr int kMost = kBins / kRowThreads / (kCluster ? 2 : 1);  // bins of a thread
  __shared__ FoundBin found;
  const int slice = kBins / team.blocks, each = slice > kRowThreads ? kMost : 1;
  const bool any = int(threadIdx.x) * each < slice;
  const int last = kBins - 1 - team.block * slice - int(threadIdx.x) * each;
  Mass masses[kMost] = {}, mine = 0;
  team.Sync();  // all elements are counted
  for (int other = 0; any && other < team.blocks; ++other) {
    const Bins& from = *team.At(&bins, other);
#pragma unroll
    for (int j = 0; j < kMost; ++j) {
      if (j >= each) break;
      masses[j] += from.MassOf(last - j);
    }
  }
#pragma unroll
  for (int j = 0; j < kMost; ++j) mine += masses[j];
  Mass in_slice = 0;
  const Mass before_mine = BlockSumBefore(mine, &in_slice);
  const Mass* totals = team.Gather(in_slice);  // a barrier: the bins have been read
  bins.Clear();
  Mass total = 0;
  for (int b = 0; b < team.blocks; ++b) total += totals[b];
  if (goal.mass == 0) goal.mass = Goal::Of(goal.part, total);
  int owner = 0;  // the block in whose slice the bin is
  for (; owner + 1 < team.blocks && goal.mass > above + totals[owner]; ++owner) above += totals[owner];
  const Mass before = above + before_mine;
  if (owner == team.block && before < goal.mass && goal.mass <= before + mine) {
    found = {last, before, masses[0]};
#pragma unroll
    for (int j = 1; j < kMost; ++j) {
      const Mass reached = found.above + found.mass;
      if (goal.mass > reached) found = {last - j, reached, masses[j]};
    }
  }
  team.Sync();
  return *team.At(&found, owner);
}

// values: the block's n Logits, without NaN; weight(v): the mass of a value, not read for counts. lo and hi: of the
// elements that take part, of the whole row. 0 < the goal <= the mass of those. `bins` is shared memory, clear.
template <bool kWeighted, bool kCluster, class Values, class Weight>
__device__ Threshold SelectThreshold(Team<kCluster>& team, Bins& bins, const Values& values, int n, float lo, float hi,
                                     Goal goal, const Weight& weight) {
  Mass above = 0;
  // Of any row fewer rounds are enough: each one keeps at most 2^-11 of the range, or one value.
  for (int round = 0; (lo < hi || goal.mass == 0) && round < kMostRounds; ++round) {
    const Steps steps(lo, hi);
    values.Each(0, n, int(threadIdx.x), kRowThreads, [&](float v) {
      if (!(v >= lo && v <= hi)) return;
      if constexpr (kWeighted) {
        if (const Mass mass = weight(v); mass != 0) bins.Add(steps.BinOf(v), mass);
      } else {
        bins.Count(steps.BinOf(v));
      }
    });
    const FoundBin f = FindBin(team, bins, above, goal);
    const uint32_t first = FirstKeyOf(f.bin, steps);
    // What each element of the bin has at least: less than two of it is one element. expf may decrease by a little.
    const Mass some = kWeighted ? weight(OfKey(first)) : 0, least = kWeighted ? some - min(some, some / 1024 + 1) : 1;
    if (f.mass < 2 * least || f.above + f.mass == goal.mass) return {OfKey(first), kAllTies};
    const uint32_t last = LastKeyOf(f.bin, steps);
    lo = OfKey(first);
    hi = OfKey(last);
    above = f.above;
  }
  const Mass each = kWeighted ? weight(lo) : 1;
  return {lo, each == 0 ? kAllTies : (goal.mass - above + each - 1) / each};
}
#endif  // __CUDACC__

}  // namespace lz::sampler
