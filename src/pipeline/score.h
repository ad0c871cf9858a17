// 6 score: measured or ranked. Time decides among kernels that were measured for this class of calls; priorities rank
// what was not and break ties within noise; every term stays visible.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "pipeline/filter.h"

namespace lz {

// What is known of a kernel's time for this class of calls.
struct Measurement {
  double median_us = 0;
  double noise = 0;       // relative half width of the interval of the median
  double confidence = 0;  // 0 to 1
  bool other_version =
      false;  // of the library whose kernel it is: the times beside it were taken in turns with this one
};
using MeasurementSource = std::function<std::optional<Measurement>(const KernelEntry&, const Request&)>;

// The first that the policy prefers gets the bonus, the second half of it, the third a third.
inline constexpr double kPreferredBonus = 20, kAvoidedMalus = -50, kWorstMeasuredTerm = -30;
inline constexpr double kConfident = 0.8;     // from here on time decides
inline constexpr double kOtherVersion = 0.5;  // what is left of the confidence of all times of a call with such a one

// Points of priority that one copied or converted tensor of `bytes` costs: a part for each, and one for its share of
// all bytes of the call. A copy reads and writes what the kernel then reads once more: the weight of a single row costs
// more than any own kernel gains over a library that takes it as it is, a short query beside a long cache next to
// nothing.
double TransformCost(uint64_t bytes, const Request& request);
double TransformCost(const Transforms& transforms, const Request& request);  // of all of them

// Fills terms and scores of the admissible candidates and returns the index of the winner, -1 when none is admissible.
// A reference wins only when nothing else is admissible. Ties: higher priority, then the smaller id.
int Score(std::vector<Candidate>& candidates, const Request& request, const Policy& policy,
          const MeasurementSource& measurements);

}  // namespace lz
