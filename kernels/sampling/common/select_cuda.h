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

inline constexpr int kBins = 2048, kBinsOfThread = kBins / kRowThreads, kMostRounds = 64;

// The bins between lo and hi, lo < hi: 0 at lo, never less for a larger value, not 0 at hi.
struct Steps {
  float lo, hi, width, scale;

  __device__ Steps(float lo, float hi) : lo(lo), hi(hi), width(hi - lo), scale(float(kBins - 1) / width) {}
  __device__ int BinOf(float v) const {
    if (width < kInfinity && scale < kInfinity) return int((v - lo) * scale);
    // Bounds beyond FP32's range from each other, or of subnormal distance.
    const float at = width < kInfinity ? (v - lo) / width : (v * 0.5f - lo * 0.5f) / (hi * 0.5f - lo * 0.5f);
    return int(at * float(kBins - 1));
  }
};

// Floats in their order as integers.
__device__ inline uint32_t KeyOf(float v) {
  const uint32_t bits = __float_as_uint(v);
  return bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}
__device__ inline float OfKey(uint32_t key) { return __uint_as_float(key ^ (key >> 31 ? 0x80000000u : 0xffffffffu)); }

// The key of the smallest float between the steps' bounds whose bin is at least `bin`.
__device__ inline uint32_t FirstKeyOf(int bin, const Steps& steps) {
  uint32_t low = KeyOf(steps.lo), high = KeyOf(steps.hi);
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    if (steps.BinOf(OfKey(middle)) >= bin) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

// Of the largest float in a bin that is not empty.
__device__ inline uint32_t LastKeyOf(int bin, const Steps& steps) {
  return bin >= steps.BinOf(steps.hi) ? KeyOf(steps.hi) : FirstKeyOf(bin + 1, steps) - 1;
}

struct Bins {
  Mass mass[kBins];
  uint32_t count[kBins];
};
struct FoundBin {
  int bin;
  Mass above;  // of the bins after it
  Mass mass;
  uint32_t count;
};

// The bin where the order, from the last bin down, reaches `target`; `above`: the mass of what is above all bins.
template <bool kWeighted>
__device__ FoundBin FindBin(const Bins& bins, Mass above, Mass target) {
  __shared__ FoundBin found;
  const auto mass_of = [&bins](int b) -> Mass { return kWeighted ? bins.mass[b] : bins.count[b]; };
  int b = kBins - 1 - kBinsOfThread * int(threadIdx.x);
  Mass mine = 0;
  for (int j = 0; j < kBinsOfThread; ++j) mine += mass_of(b - j);
  Mass before = above + BlockSumBefore(mine);  // a barrier: the last `found` has been read
  if (before < target && target <= before + mine) {
    for (; target > before + mass_of(b); --b) before += mass_of(b);
    found = {b, before, mass_of(b), bins.count[b]};
  }
  __syncthreads();
  return found;
}

// values: Logits without NaN; weight(v): the mass of a value, not read for counts. lo and hi: of the elements that take
// part. 0 < target <= the mass of those. `bins` is shared memory.
template <bool kWeighted, class Values, class Weight>
__device__ Threshold SelectThreshold(Bins& bins, const Values& values, int64_t n, float lo, float hi, Mass target,
                                     const Weight& weight) {
  Mass above = 0;
  // Of any row fewer rounds are enough: each one keeps at most 2^-11 of the range, or one value.
  for (int round = 0; lo < hi && round < kMostRounds; ++round) {
    for (int b = int(threadIdx.x); b < kBins; b += kRowThreads) {
      if (kWeighted) bins.mass[b] = 0;
      bins.count[b] = 0;
    }
    __syncthreads();
    const Steps steps(lo, hi);
    values.Each(0, n, int(threadIdx.x), kRowThreads, [&](float v) {
      if (!(v >= lo && v <= hi)) return;
      const int b = steps.BinOf(v);
      if (kWeighted) atomicAdd(&bins.mass[b], weight(v));
      atomicAdd(&bins.count[b], 1u);
    });
    __syncthreads();
    const FoundBin f = FindBin<kWeighted>(bins, above, target);
    const uint32_t first = FirstKeyOf(f.bin, steps);
    if (f.count == 1 || f.above + f.mass == target) return {OfKey(first), kAllTies};
    const uint32_t last = LastKeyOf(f.bin, steps);
    lo = OfKey(first);
    hi = OfKey(last);
    above = f.above;
  }
  const Mass each = kWeighted ? weight(lo) : 1;
  return {lo, each == 0 ? kAllTies : (target - above + each - 1) / each};
}
#endif  // __CUDACC__

}  // namespace lz::sampler
