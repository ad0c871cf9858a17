#include "pipeline/score.h"

#include <algorithm>
#include <bit>

namespace lz {
namespace {

// The cost of one contiguous copy, in points of priority: two kernels that differ by less are not worth a copy.
constexpr double kCopyCost = 15;

void FillTerms(Candidate* c, double best_us, const std::optional<Measurement>& m) {
  c->terms.push_back({"priority", double(c->kernel->spec.priority), "declared"});
  if (c->preferred) c->terms.push_back({"preferred", kPreferredBonus, "policy"});
  if (c->avoided) c->terms.push_back({"avoided", kAvoidedMalus, "policy"});
  if (m && best_us > 0) {
    const double term = std::max(kWorstMeasuredTerm, -10 * (m->median_us / best_us - 1)) * m->confidence;
    c->terms.push_back({"measured", term, "measured"});
  }
  if (c->contiguous_inputs) {
    c->terms.push_back({"transforms", -kCopyCost * std::popcount(c->contiguous_inputs), "modelled"});
  }
  for (const Term& t : c->terms) c->score += t.value;
}

// Whether a beats b.
bool Better(const Candidate& a, const Candidate& b, double best_us, double prefer_tolerance,
            const std::optional<Measurement>& ma, const std::optional<Measurement>& mb) {
  if (a.kernel->spec.reference != b.kernel->spec.reference) return b.kernel->spec.reference;
  if (a.avoided != b.avoided) return b.avoided;
  const bool timed = ma && mb && ma->confidence >= kConfident && mb->confidence >= kConfident;
  if (timed) {
    if (a.preferred != b.preferred) {
      const Measurement& preferred = a.preferred ? *ma : *mb;
      if (preferred.median_us <= best_us * (1 + prefer_tolerance)) return a.preferred;
    }
    const double apart = std::abs(ma->median_us - mb->median_us) / std::min(ma->median_us, mb->median_us);
    if (apart > ma->noise + mb->noise) return ma->median_us < mb->median_us;
  }
  if (a.score != b.score) return a.score > b.score;
  if (a.kernel->spec.priority != b.kernel->spec.priority) return a.kernel->spec.priority > b.kernel->spec.priority;
  return a.kernel->id < b.kernel->id;
}

}  // namespace

int Score(std::vector<Candidate>& candidates, const Request& request, const Policy& policy,
          const MeasurementSource& measurements) {
  std::vector<std::optional<Measurement>> measured(candidates.size());
  double best_us = 0;
  for (size_t i = 0; i < candidates.size(); ++i) {
    Candidate& c = candidates[i];
    if (!c.admissible() || !measurements) continue;
    measured[i] = measurements(*c.kernel, request);
    if (!measured[i]) continue;
    c.measured_us = measured[i]->median_us;
    if (best_us == 0 || c.measured_us < best_us) best_us = c.measured_us;
  }
  int best = -1;
  for (size_t i = 0; i < candidates.size(); ++i) {
    Candidate& c = candidates[i];
    if (!c.admissible()) continue;
    FillTerms(&c, best_us, measured[i]);
    if (best < 0 ||
        Better(c, candidates[size_t(best)], best_us, policy.prefer_tolerance, measured[i], measured[size_t(best)])) {
      best = int(i);
    }
  }
  return best;
}

}  // namespace lz
