// A draw from the integer masses of a row, in vocabulary order: sums over 16 parts, then over 16 parts of the one where
// the draw falls, until 32 elements are left.
//   item(i, &tie): the mass of element i; `tie` set: one of the equal elements of which the first `ties` count, with
//   `tie_mass` each      item.Each(first, last, lane, lanes, body): body(mass, tie) for a lane's share of the elements
#pragma once

#include "kernels/sampling/common/block_cuda.h"

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
__device__ inline int64_t PartLength(int64_t n) { return (n + kRowThreads - 1) / kRowThreads * kWarp; }

// The sums of [begin, end) in parts, one for each warp; the block has kRowThreads threads.
template <class Item>
__device__ const Part* SumParts(const Item& item, int64_t begin, int64_t end) {
  __shared__ Part parts[kRowWarps];
  const int64_t length = PartLength(end - begin);
  const int64_t first = begin + WarpOfBlock() * length, last = first + length < end ? first + length : end;
  Mass above = 0, ties = 0;
  item.Each(first, last, LaneOfWarp(), kWarp, [&](Mass mass, bool tie) {
    above += mass;
    ties += tie;
  });
  above = WarpSum(above);
  ties = WarpSum(ties);
  __syncthreads();  // the parts of the call before have been read
  if (LaneOfWarp() == 0) parts[WarpOfBlock()] = {above, ties};
  __syncthreads();
  return parts;
}

// The mass of a part, `left` of whose ties count at most; those it has are taken from `left`.
__device__ inline Mass TakePart(const Part& part, Mass tie_mass, Mass* left) {
  const Mass taken = part.ties < *left ? part.ties : *left;
  *left -= taken;
  return part.above + taken * tie_mass;
}

template <class Item>
__device__ Mass TotalMass(const Item& item, int64_t n, Ties ties) {
  const Part* parts = SumParts(item, 0, n);
  Mass total = 0;
  for (int w = 0; w < kRowWarps; ++w) total += TakePart(parts[w], ties.mass, &ties.count);
  return total;
}

// Of the elements [begin, begin + 32): the first at which the running sum exceeds `target`. Every warp finds it.
template <class Item>
__device__ int64_t DrawInWarp(const Item& item, int64_t begin, int64_t end, Ties ties, Mass target) {
  const int64_t i = begin + LaneOfWarp();
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

// The first index at which the running sum exceeds u times the total; -1: there is no mass.
template <class Item>
__device__ int64_t Draw(const Item& item, int64_t n, Ties ties, double u) {
  const Mass total = TotalMass(item, n, ties);
  if (total == 0) return -1;
  Mass target = Mass(u * double(total));
  if (target >= total) target = total - 1;
  int64_t begin = 0, end = n;
  while (end - begin > kWarp) {
    const int64_t length = PartLength(end - begin);
    const Part* parts = SumParts(item, begin, end);
    for (int w = 0; w < kRowWarps; ++w) {
      Ties after = ties;
      const Mass mass = TakePart(parts[w], ties.mass, &after.count);
      if (mass > target) {
        begin += w * length;
        end = begin + length < end ? begin + length : end;
        break;
      }
      target -= mass;
      ties = after;
    }
  }
  return DrawInWarp(item, begin, end, ties, target);
}
#endif  // __CUDACC__

}  // namespace lz::sampler
