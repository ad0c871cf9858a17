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
};
using MeasurementSource = std::function<std::optional<Measurement>(const KernelEntry&, const Request&)>;

inline constexpr double kPreferredBonus = 20, kAvoidedMalus = -50, kWorstMeasuredTerm = -30;
// Of one copied or converted tensor, in points of priority: kernels that differ by less are not worth it.
inline constexpr double kTransformCost = 15;
inline constexpr double kConfident = 0.8;  // from here on time decides

// Fills terms and scores of the admissible candidates and returns the index of the winner, -1 when none is admissible.
// A reference wins only when nothing else is admissible. Ties: higher priority, then the smaller id.
int Score(std::vector<Candidate>& candidates, const Request& request, const Policy& policy,
          const MeasurementSource& measurements);

}  // namespace lz
