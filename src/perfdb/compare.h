// Statistics of times that were taken in turns: which kernel is faster, and is that more than noise.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/export.h"

namespace lz::perfdb {

// How many times as long one side takes as the other: the Hodges-Lehmann estimate of the paired log ratios, the
// interval of Wilcoxon's signed-rank test at 95 % (all that there is below six pairs), and 1 - p of the one-sided test
// that it is below 1.
struct Ratio {
  double value = 1, low = 0, high = 0, confidence = 0;
};

// `a`, `b`: positive times of the same rounds, of equal number. No pair: an interval without ends (0, infinity).
LZ_OWN Ratio PairedRatio(std::span<const double> a, std::span<const double> b);

// The noise of a comparison, relative: how far the same kernel is from itself in its two places of each round, or half
// the width of that interval if that is more.
LZ_OWN double SpreadOf(std::span<const double> first, std::span<const double> again);

// True if a challenger replaces the default: its interval excludes 1, and the gain is more than `least` and than twice
// the spread.
LZ_OWN bool Replaces(const Ratio& challenger_to_default, double spread, double least);

// Successive halving: the candidates that stay, as indices in ascending order of `us`: those within `limit` times the
// fastest one, of these the faster half, but at least `least` of them. `kept` (the default) always stays.
LZ_OWN std::vector<size_t> Survivors(std::span<const double> us, size_t kept, double limit, size_t least);

// Of `n` results the largest group in which all are within `bound` of one of them; empty unless that is more than half
// of all and more than one. `distances`: n x n, row-major, symmetric.
LZ_OWN std::vector<size_t> MajorityOf(std::span<const double> distances, size_t n, double bound);

// The k kernels that lose least over a workload: the mean of time / best time by `weights`, where each call runs the
// fastest of the k that can serve it. `us`: calls x kernels, row-major; infinity: a kernel cannot serve the call.
// Each call has some. Exact up to some ten thousand subsets, else greedy with exchanges. A call that none of them
// serves counts as a thousand times its best.
struct Variants {
  std::vector<size_t> kernels;  // ascending
  double loss = 0;              // mean of time / best time, less 1
};
LZ_OWN Variants BestVariants(std::span<const double> us, std::span<const double> weights, size_t num_kernels, size_t k);

}  // namespace lz::perfdb
