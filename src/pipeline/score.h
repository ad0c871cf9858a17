// 6 score: measured or ranked. Time decides among kernels that were measured for this class of calls; priorities order
// the others and break ties within noise; every term stays visible.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "pipeline/filter.h"

namespace lz {

// The known time of a kernel for this class of calls.
struct Measurement {
  double median_us = 0;
  double noise = 0;            // relative half width of the interval of the median
  double confidence = 0;       // 0 to 1
  bool other_version = false;  // measured with another version of the kernel's library, as were its rivals
};
using MeasurementSource = std::function<std::optional<Measurement>(const KernelEntry&, const BoundCall&)>;

// The source that the policy prefers most gets the whole bonus, the second half of it, the third a third.
inline constexpr double kPreferredBonus = 20, kAvoidedMalus = -50, kWorstMeasuredTerm = -30;
inline constexpr double kConfident = 0.8;     // time decides from this confidence on
inline constexpr double kOtherVersion = 0.5;  // factor on the confidence of all times of a call that has such a kernel

// The cost, in points of priority, of one copied or converted tensor of `bytes`: a constant part, and a part for its
// fraction of all bytes of the call. The kernel reads again what a copy has read and written: copying the weight for a
// single row costs more than any own kernel gains over a library that takes it unchanged; copying a short query next to
// a long cache costs almost nothing.
double TransformCost(uint64_t bytes, const BoundCall& call);
double TransformCost(const Transforms& transforms, const BoundCall& call);  // sum of all

// Sets terms and scores of the admissible candidates and returns the index of the winner, -1 if none is admissible. A
// reference wins only if nothing else is admissible. Ties: the higher priority, then a measured kernel, then the
// smaller id.
int Score(std::vector<Candidate>& candidates, const BoundCall& call, const Policy& policy,
          const MeasurementSource& measurements);

}  // namespace lz
