#include "pipeline/score.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <tuple>
#include <utility>

#include "pipeline/request_bytes.h"

namespace lz {
namespace {

constexpr double kEachTransform = 5, kCopiedShare = 90;
constexpr const char* kMeasuredTerm = "measured";

void FillTerms(Candidate* c, const BoundCall& call, double best_us, const std::optional<Measurement>& m) {
  c->terms.push_back({"priority", double(c->priority), "declared"});
  if (c->preferred) c->terms.push_back({"preferred", kPreferredBonus / c->preferred, "policy"});
  if (c->avoided) c->terms.push_back({"avoided", kAvoidedMalus, "policy"});
  if (m && best_us > 0) {
    const double term = std::max(kWorstMeasuredTerm, -10 * (m->median_us / best_us - 1)) * m->confidence;
    c->terms.push_back({kMeasuredTerm, term, "measured"});
  }
  if (c->transforms.any()) {
    c->terms.push_back({"transforms", -TransformCost(c->transforms, call), "modelled"});
    const double hint = c->kernel->transform_cost_hint;
    if (hint > 0) c->terms.push_back({"transform_cost_hint", -hint, "declared"});
  }
  for (const Term& t : c->terms) c->score += t.value;
}

using Measurements = std::vector<std::optional<Measurement>>;

// Keeps the indices for which `keep` is true, or all if it is true for none.
template <class Keep>
void Narrow(std::vector<size_t>* among, Keep&& keep) {
  std::vector<size_t> kept;
  std::copy_if(among->begin(), among->end(), std::back_inserter(kept), keep);
  if (!kept.empty()) *among = std::move(kept);
}

// Narrows kernels with confident times to the most preferred ones near the best time if there are any, then to those
// that noise does not separate from the fastest.
void NarrowByTime(const std::vector<Candidate>& candidates, const Measurements& measured, double prefer_tolerance,
                  std::vector<size_t>* timed) {
  const auto fastest = [&] {
    return *std::min_element(timed->begin(), timed->end(), [&](size_t a, size_t b) {
      return std::pair(measured[a]->median_us, measured[a]->noise) <
             std::pair(measured[b]->median_us, measured[b]->noise);
    });
  };
  const double best_us = measured[fastest()]->median_us;
  const auto near_best = [&](size_t i) { return measured[i]->median_us <= best_us * (1 + prefer_tolerance); };
  int most_preferred = 0;
  for (size_t i : *timed) {
    const int place = candidates[i].preferred;
    if (place > 0 && near_best(i) && (most_preferred == 0 || place < most_preferred)) most_preferred = place;
  }
  Narrow(timed,
         [&](size_t i) { return most_preferred > 0 && candidates[i].preferred == most_preferred && near_best(i); });
  const Measurement& best = *measured[fastest()];
  Narrow(timed,
         [&](size_t i) { return measured[i]->median_us <= best.median_us * (1 + best.noise + measured[i]->noise); });
}

// The best of kernels that noise does not separate: by their scores without the measured term, then by their times.
size_t BestWithoutTime(const std::vector<Candidate>& candidates, const Measurements& measured,
                       const std::vector<size_t>& timed) {
  const auto rank = [&](size_t i) {
    double score = 0;
    for (const Term& t : candidates[i].terms) score += std::string_view(t.name) == kMeasuredTerm ? 0 : t.value;
    return std::tuple(-score, -candidates[i].priority, measured[i]->median_us, candidates[i].kernel->id);
  };
  return *std::min_element(timed.begin(), timed.end(), [&](size_t i, size_t k) { return rank(i) < rank(k); });
}

// The index of the winner among the admissible, independent of their order; -1: none. Kernels whose confident times
// noise does not separate from the fastest compete without their times first; the best of them then competes by score.
int Winner(const std::vector<Candidate>& candidates, const Measurements& measured, double prefer_tolerance) {
  std::vector<size_t> among;
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (candidates[i].admissible()) among.push_back(i);
  }
  if (among.empty()) return -1;
  Narrow(&among, [&](size_t i) { return !candidates[i].kernel->spec.reference; });
  Narrow(&among, [&](size_t i) { return !candidates[i].avoided; });
  const auto is_timed = [&](size_t i) { return measured[i] && measured[i]->confidence >= kConfident; };
  std::vector<size_t> timed;
  std::copy_if(among.begin(), among.end(), std::back_inserter(timed), is_timed);
  if (!timed.empty()) {
    std::erase_if(among, is_timed);
    NarrowByTime(candidates, measured, prefer_tolerance, &timed);
    among.push_back(BestWithoutTime(candidates, measured, timed));
  }
  const auto rank = [&](size_t i) {
    return std::tuple(-candidates[i].score, -candidates[i].priority, !measured[i], candidates[i].kernel->id);
  };
  return int(*std::min_element(among.begin(), among.end(), [&](size_t i, size_t k) { return rank(i) < rank(k); }));
}

}  // namespace

double TransformCost(uint64_t bytes, const BoundCall& call) {
  return kEachTransform + kCopiedShare * double(bytes) / double(std::max<uint64_t>(CallBytes(call), 1));
}

double TransformCost(const Transforms& transforms, const BoundCall& call) {
  double cost = 0;
  for (size_t i = 0; i < call.op->num_inputs(); ++i) {
    if (transforms.inputs() >> i & 1) {
      cost += TransformCost(InputBytes(call, i, transforms.DTypeAfter(call, i)), call);
    }
  }
  for (size_t o = 0; o < call.op->num_outputs(); ++o) {
    if (!(transforms.outputs >> o & 1) || call.outputs[o].ndim < 0) continue;
    cost += TransformCost(OutputBytes(call.outputs[o]), call);
  }
  return cost;
}

int Score(std::vector<Candidate>& candidates, const BoundCall& call, const Policy& policy,
          const MeasurementSource& measurements) {
  Measurements measured(candidates.size());
  double best_us = 0;
  bool other_version = false;
  for (size_t i = 0; i < candidates.size(); ++i) {
    Candidate& c = candidates[i];
    if (!c.admissible() || !measurements) continue;
    measured[i] = measurements(*c.kernel, call);
    if (!measured[i]) continue;
    c.measured_us = measured[i]->median_us;
    if (best_us == 0 || c.measured_us < best_us) best_us = c.measured_us;
    other_version |= measured[i]->other_version;
  }
  // The kernels of a call are compared by times that were measured together, or not by time.
  for (std::optional<Measurement>& m : measured) {
    if (m && other_version) m->confidence *= kOtherVersion;
  }
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (candidates[i].admissible()) FillTerms(&candidates[i], call, best_us, measured[i]);
  }
  return Winner(candidates, measured, policy.prefer_tolerance);
}

}  // namespace lz
