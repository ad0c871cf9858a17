// A draw from the integer masses of a row, in vocabulary order: sums over 16 parts of each block, then over 16 parts of
// the one where the draw falls, until 32 elements are left.
//   item(i, &tie): the mass of the block's element i; `tie` set: one of the equal elements of which the first `ties`
//   count, with `tie_mass` each
//   item.Each(first, last, lane, lanes, body): body(mass, tie) for a lane's share of the block's elements
#pragma once

#include "kernels/sampling/common/team_cuda.h"

namespace lz::sampler {

#ifdef __CUDACC__

// Which of the equal elements count, and what each weighs.
struct Ties {
  Mass count = 0, mass = 0;
};
struct Part {
  Mass above, ties;
};

// Elements of a part of n, a multiple of the warp's.
__device__ inline int PartLength(int n) { return (n + kRowThreads - 1) / kRowThreads * kWarp; }

// The sums of the block's [begin, end) in parts, one for each warp; the block has kRowThreads threads.
template <class Item>
__device__ const Part* SumParts(const Item& item, int begin, int end) {
  __shared__ Part parts[kRowWarps];
  const int length = PartLength(end - begin);
  const int first = begin + WarpOfBlock() * length, last = first + length < end ? first + length : end;
  Part sum = {};
  item.Each(first, last, LaneOfWarp(), kWarp, [&](Mass mass, bool tie) {
    sum.above += mass;
    sum.ties += tie;
  });
  sum = {WarpSum(sum.above), WarpSum(sum.ties)};
  __syncthreads();  // the parts of the call before have been read
  if (LaneOfWarp() == 0) parts[WarpOfBlock()] = sum;
  __syncthreads();
  return parts;
}

// The mass of a part, `left` of whose ties count at most; those it has are taken from `left`.
__device__ inline Mass TakePart(const Part& part, Mass tie_mass, Mass* left) {
  const Mass taken = part.ties < *left ? part.ties : *left;
  *left -= taken;
  return part.above + taken * tie_mass;
}

// The mass of the row, of whose blocks each has n elements of its own.
template <bool kCluster, class Item>
__device__ Mass TotalMass(Team<kCluster>& team, const Item& item, int n, Ties ties) {
  Part sum = {};
  item.Each(0, n, int(threadIdx.x), kRowThreads, [&](Mass mass, bool tie) {
    sum.above += mass;
    sum.ties += tie;
  });
  sum = {WarpSum(sum.above), WarpSum(sum.ties)};
  sum = team.FoldWarps(sum, [](const Part& a, const Part& b) { return Part{a.above + b.above, a.ties + b.ties}; });
  return TakePart(sum, ties.mass, &ties.count);
}

// The number of the part where the running sum exceeds *target; that of the parts before it is taken off *target, and
// their ties off *ties. One of the parts has it.
__device__ inline int PassParts(const Part* parts, Ties* ties, Mass* target) {
  for (int part = 0;; ++part) {
    Ties after = *ties;
    const Mass mass = TakePart(parts[part], ties->mass, &after.count);
    if (mass > *target) return part;
    *target -= mass;
    *ties = after;
  }
}

// Of the elements [begin, begin + 32): the first at which the running sum exceeds `target`. Every warp finds it.
template <class Item>
__device__ int DrawInWarp(const Item& item, int begin, int end, Ties ties, Mass target) {
  const int i = begin + LaneOfWarp();
  bool tie = false;
  Mass mass = i < end ? item(i, &tie) : 0;
  const uint32_t earlier = __ballot_sync(0xffffffffu, tie) & ((1u << LaneOfWarp()) - 1);
  if (tie) mass = Mass(__popc(earlier)) < ties.count ? ties.mass : 0;
  for (int step = 1; step < kWarp; step *= 2) {
    const Mass other = __shfl_up_sync(0xffffffffu, mass, step);
    if (LaneOfWarp() >= step) mass += other;
  }
  return begin + __ffs(int(__ballot_sync(0xffffffffu, mass > target))) - 1;
}

inline constexpr int kNoToken = -1, kOfAnotherBlock = -2;

// Which of the block's n elements is the first at which the running sum of the row exceeds u times its total.
// kNoToken, in every block: there is no mass.
template <bool kCluster, class Item>
__device__ int Draw(Team<kCluster>& team, const Item& item, int n, Ties ties, double u) {
  const Part* parts = SumParts(item, 0, n);
  Part sum = {};
  for (int w = 0; w < kRowWarps; ++w) sum = {sum.above + parts[w].above, sum.ties + parts[w].ties};
  const Part* blocks = team.Gather(sum);
  Mass total = 0;
  Ties left = ties;
  for (int b = 0; b < team.blocks; ++b) total += TakePart(blocks[b], ties.mass, &left.count);
  if (total == 0) return kNoToken;
  Mass target = Mass(u * double(total));
  if (target >= total) target = total - 1;
  if (PassParts(blocks, &ties, &target) != team.block) return kOfAnotherBlock;
  int begin = 0, end = n;
  for (;;) {
    const int length = PartLength(end - begin);
    begin += PassParts(parts, &ties, &target) * length;
    end = begin + length < end ? begin + length : end;
    if (end - begin <= kWarp) return DrawInWarp(item, begin, end, ties, target);
    parts = SumParts(item, begin, end);
  }
}
#endif  // __CUDACC__

}  // namespace lz::sampler
