#include "perfdb/prior.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "perfdb/device_id.h"
#include "perfdb/key.h"

namespace lz::perfdb {
namespace {

constexpr double kSimilarDevice = 0.5;       // confidence: other cores of a CPU, another GPU of the same generation
constexpr size_t kLeastShared = 3;           // times that two devices have in common, for a factor between them
constexpr double kSimilarEnvironment = 0.5;  // the device was hot, throttled or at work for others
constexpr double kNear = 2, kFar = 4;        // sums of |log2| over the axes
constexpr double kLeastNoise = 0.03;
constexpr double kLeastOfMany = 0.005;  // of times in turns of kManySamples rounds and more, which tuning confirms
constexpr int64_t kManySamples = 16;
constexpr double kNoiseOfDistance = 0.05;  // per doubling between a call and its neighbor
constexpr double kCloseValues = 1.25;      // measured values within this factor share a cell

// Axes that say how large a cache's pool is.
constexpr auto kPools = std::to_array<std::string_view>({"blocks", "pages"});

constexpr int64_t kUnmeasured = -1;  // the value of a cell that is out of reach of its neighbors

// Axes whose size 1 is another regime than 2 and more: one token of a sequence reads keys and values, many multiply
// matrices; one row of a product reads weights. Neither predicts the other.
bool HasRegimes(const Operation& op, std::string_view axis) {
  const auto has = [&](std::string_view name) { return std::ranges::find(op.axes(), name) != op.axes().end(); };
  return axis == "s_q" || (axis == "..." && has("n") && has("k"));
}

// Makes 1 a cell of its own, in cells that were cut halfway between the values.
void SplitRegimes(std::vector<int64_t>* values, std::vector<int64_t>* cuts) {
  if (values->empty()) return;
  if (values->front() != 1) {
    cuts->front() = std::max<int64_t>(cuts->front(), 2);
    return;
  }
  cuts->at(1) = 2;
  if (values->size() == 1) return;
  const int64_t next = (values->at(1) + Prior::kReach - 1) / Prior::kReach;
  if (next <= 2) return;
  values->insert(values->begin() + 1, kUnmeasured);
  cuts->insert(cuts->begin() + 2, next);
}

double Log2(int64_t value) { return std::log2(double(std::max<int64_t>(value, 1))); }

// Half the width of a 95 % interval of the median, relative to it; at least the variation between runs.
double NoiseOf(const Record& r) {
  if (!r.variance_us || r.samples < 2) return kLeastNoise;
  const double least = r.interleaved && r.samples >= kManySamples ? kLeastOfMany : kLeastNoise;
  return std::max(least, 1.96 * 1.2533 * std::sqrt(*r.variance_us / double(r.samples)) / r.median_us);
}

// The condition under which a call has this option; nullopt: the contract has no such option.
std::optional<Constraint> ConditionOf(const Operation& op, const std::string& name, const std::string& value) {
  const std::optional<uint16_t> field = op.FindField(value == "given" ? name + ".given" : name);
  if (!field) return std::nullopt;
  const Field& f = op.fields()[*field];
  if (f.type == FieldType::kDType) {
    const DType dtype = DTypeFromName(value);
    return dtype == DType::kUnknown ? std::nullopt : std::optional(Constraint{f.name, Rel::kEq, int64_t(dtype)});
  }
  if (f.type == FieldType::kBool) return Constraint{f.name, Rel::kEq, value == "given" || value == "true"};
  if (f.type != FieldType::kChoice) return std::nullopt;
  const int64_t index = ChoiceIndex(f.choices, value);
  return index < 0 ? std::nullopt : std::optional(Constraint{f.name, Rel::kEq, index});
}

std::string KernelKey(std::string_view id, std::string_view version) {
  return std::string(id) + " " + std::string(version);
}

// What a record is about, on whatever device.
std::string CallOf(const Record& record) {
  Record r = record;
  r.device_id.clear();
  r.sm_version = 0;
  return IdentityOf(r) + r.kernel_version;
}

using Records = std::span<const std::vector<Record>>;

// Of each similar device, how long the same kernels take on this one for the same calls, relative to there: the median
// over what was measured on both. A device with fewer than kLeastShared times in common with this one has no factor.
std::map<std::string, double> FactorsOf(Records groups, auto&& is_own, auto&& is_similar) {
  std::map<std::string, double> own, factors;
  for (const std::vector<Record>& group : groups) {
    for (const Record& r : group) {
      if (is_own(r)) own.emplace(CallOf(r), r.median_us);
    }
  }
  if (own.empty()) return factors;
  std::map<std::string, std::vector<double>> ratios;
  for (const std::vector<Record>& group : groups) {
    for (const Record& r : group) {
      if (!is_similar(r)) continue;
      if (const auto at = own.find(CallOf(r)); at != own.end()) ratios[r.device_id].push_back(at->second / r.median_us);
    }
  }
  for (auto& [device, of] : ratios) {
    if (of.size() < kLeastShared) continue;
    std::ranges::nth_element(of, of.begin() + ptrdiff_t(of.size() / 2));
    factors[device] = of[of.size() / 2];
  }
  return factors;
}

// The similar device whose records an operation gets, by operation: one alone, since times of two devices are not
// compared. One with a factor comes first, then the one with the most records.
std::map<std::string, std::string> SimilarOf(const std::vector<Record>& group,
                                             const std::map<std::string, double>& factors, auto&& is_similar) {
  std::map<std::string, std::map<std::string, size_t>> counts;
  for (const Record& r : group) {
    if (is_similar(r)) ++counts[r.operation][r.device_id];
  }
  std::map<std::string, std::string> chosen;
  for (const auto& [operation, of] : counts) {
    const auto rank = [&](const auto& one) { return std::pair(factors.contains(one.first), one.second); };
    chosen[operation] = std::ranges::max_element(of, {}, rank)->first;
  }
  return chosen;
}

// "2.13" of "2.13.1+cpu"; the whole text if it is not a release.
std::string_view ReleaseOf(std::string_view version) {
  const std::string_view numbers = version.substr(0, version.find('+'));
  if (numbers.empty() || numbers.find_first_not_of("0123456789.") != numbers.npos) return version;
  const size_t minor = numbers.find('.');
  return minor == numbers.npos ? numbers : numbers.substr(0, numbers.find('.', minor + 1));
}

// "3f21ab90" of "0.7.2+prebuilt.3f21ab90": compiled code that a library takes from elsewhere (backends/prebuilt.py).
std::string_view PrebuiltOf(std::string_view version) {
  constexpr std::string_view kMark = "+prebuilt.";
  const size_t at = version.find(kMark);
  return at == version.npos ? std::string_view() : version.substr(at + kMark.size());
}

}  // namespace

std::string LibraryVersionOf(const Record& r) {
  if (r.backend_version) return *r.backend_version;
  return r.backend == "torch" ? r.torch_version.value_or("") : "";
}

bool IsSameVersion(std::string_view a, std::string_view b) {
  return ReleaseOf(a) == ReleaseOf(b) && PrebuiltOf(a) == PrebuiltOf(b);
}

Prior::Prior(const Registry& registry, std::span<const std::vector<Record>> groups, std::string_view device_id,
             int64_t sm)
    : has_graphs_(sm > 0) {
  const auto is_usable = [&](const Record& r) {
    return r.valid && (has_graphs_ || r.execution == "eager") && r.protocol == kProtocol && !r.is_causal &&
           !r.quant_format;
  };
  const auto is_own = [&](const Record& r) { return r.device_id == device_id && is_usable(r); };
  const auto is_similar = [&](const Record& r) {
    if (r.device_id == device_id || !is_usable(r)) return false;
    return sm ? IsSameGeneration(r.sm_version, sm) : DeviceType(r.device_id) == DeviceType(device_id);
  };
  std::set<std::string> taken;
  const auto take = [&](const std::vector<Record>& records, double confidence, auto&& is_of, auto&& factor_of) {
    std::set<std::string> here;
    for (const Record& r : records) {
      if (!is_of(r) || taken.contains(r.operation)) continue;
      Take(registry, r, IsUnusualEnvironment(r) ? confidence * kSimilarEnvironment : confidence, factor_of(r));
      here.insert(r.operation);
    }
    taken.merge(here);
  };
  const std::map<std::string, double> factors = FactorsOf(groups, is_own, is_similar);
  for (const std::vector<Record>& records : groups) {
    take(records, 1, is_own, [](const Record&) { return 1.0; });
    const std::map<std::string, std::string> similar = SimilarOf(records, factors, is_similar);
    const auto is_chosen = [&](const Record& r) { return is_similar(r) && similar.at(r.operation) == r.device_id; };
    take(records, kSimilarDevice, is_chosen, [&](const Record& r) {
      const auto at = factors.find(r.device_id);
      return at == factors.end() ? 1.0 : at->second;
    });
  }
  for (auto& [op, axes] : axes_) {
    for (size_t a = 0; a < axes.size(); ++a) {
      axes[a].Cut();
      if (axes[a].decides && HasRegimes(*op, op->axes()[a])) SplitRegimes(&axes[a].values, &axes[a].cuts);
    }
  }
}

void Prior::Take(const Registry& registry, const Record& r, double confidence, double factor) {
  const Operation* op = registry.Find(r.operation);
  const DType dtype = DTypeFromName(r.dtype);
  if (!op || Registry::VariantIndex(*op, r.operation) < 0 || dtype == DType::kUnknown) return;
  std::vector<double> at;
  std::vector<Axis>& axes = axes_.try_emplace(op, op->axes().size()).first->second;
  for (size_t a = 0; a < op->axes().size(); ++a) {
    const auto given = r.axes.find(op->axes()[a]);
    if (given == r.axes.end()) return;  // another version of the contract
    axes[a].decides = std::ranges::find(kPools, op->axes()[a]) == kPools.end();
    at.push_back(axes[a].decides ? Log2(given->second) : 0);
  }
  std::vector<Constraint> conditions;
  for (const auto& [name, value] : r.options) {
    const auto condition = ConditionOf(*op, name, value);
    if (!condition) return;  // likewise
    conditions.push_back(*condition);
  }
  options_[op].insert(options_[op].end(), conditions.begin(), conditions.end());
  for (size_t a = 0; a < axes.size(); ++a) axes[a].values.push_back(r.axes.at(op->axes()[a]));
  std::vector<Call>& calls = CallsOf(r, dtype);
  auto call = std::ranges::find_if(calls, [&](const Call& c) { return c.at == at; });
  if (call == calls.end()) call = calls.insert(calls.end(), Call{at, {}, {}});
  (r.cache_state == "cold" ? call->cold : call->warm)
      .insert_or_assign(KernelKey(r.kernel_id, r.kernel_version),
                        Time{{r.median_us * factor, NoiseOf(r), confidence}, LibraryVersionOf(r)});
  ++num_records_;
}

std::vector<Prior::Call>& Prior::CallsOf(const Record& r, DType dtype) {
  CallsByOptions& known = calls_[{r.operation, dtype, r.execution == "graph"}];
  const auto same = std::ranges::find_if(known, [&](const auto& group) { return group.first == r.options; });
  if (same != known.end()) return same->second;
  const auto fewer =
      std::ranges::find_if(known, [&](const auto& group) { return group.first.size() < r.options.size(); });
  return known.insert(fewer, {r.options, {}})->second;
}

void Prior::Axis::Cut() {
  if (values.empty() || !decides) return;
  std::ranges::sort(values);
  std::vector<int64_t> kept;
  for (const int64_t value : values) {
    if (kept.empty() || double(value) > kCloseValues * double(std::max<int64_t>(kept.back(), 1))) kept.push_back(value);
  }
  values = std::move(kept);
  cuts = {(values.front() + kReach - 1) / kReach};
  for (size_t i = 1; i < values.size(); ++i) {
    const double middle = std::sqrt(double(std::max<int64_t>(values[i - 1], 1)) * double(values[i]));
    cuts.push_back(std::max(int64_t(std::ceil(middle)), cuts.back() + 1));
  }
  cuts.push_back(std::max(values.back() * kReach + 1, cuts.back() + 1));
}

Status Prior::SplitClasses(Registry& registry, std::span<const Prior* const> priors) {
  Registry::MeasuredConditions measured;
  for (const Prior* prior : priors) {
    for (const auto& [op, axes] : prior->axes_) {
      std::vector<Constraint>& conditions = measured[op];
      for (size_t a = 0; a < axes.size(); ++a) {
        for (const int64_t cut : axes[a].cuts) conditions.push_back({op->axes()[a], Rel::kGe, cut});
      }
      const auto options = prior->options_.find(op);
      if (options != prior->options_.end()) {
        conditions.insert(conditions.end(), options->second.begin(), options->second.end());
      }
      if (prior->has_graphs_) conditions.push_back({"capturing", Rel::kEq, 1});
    }
  }
  return registry.ReplaceMeasured(measured);
}

Status Prior::AddThresholds(Registry& registry) const {
  const Prior* const priors[] = {this};
  return SplitClasses(registry, priors);
}

std::optional<PriorTime> Prior::Find(const KernelEntry& kernel, DType dtype, const int64_t* axes,
                                     const Options& options, bool in_graph) const {
  const auto known = calls_.find({kernel.operation, dtype, in_graph});
  if (known == calls_.end()) return std::nullopt;
  std::vector<double> at;
  for (size_t a = 0; const Axis& axis : axes_.at(kernel.op)) {
    const int64_t size = axes[a++];
    if (!axis.decides) {
      at.push_back(0);
      continue;
    }
    const auto cell = std::ranges::upper_bound(axis.cuts, size) - axis.cuts.begin() - 1;
    if (cell < 0 || size_t(cell) >= axis.values.size()) return std::nullopt;
    if (axis.values[size_t(cell)] == kUnmeasured) return std::nullopt;
    at.push_back(Log2(axis.values[size_t(cell)]));
  }
  for (const auto& [wanted, calls] : known->second) {
    if (!std::ranges::includes(options, wanted)) continue;
    const Call* nearest = nullptr;
    double least = kFar;
    for (const Call& call : calls) {
      double distance = 0;
      for (size_t a = 0; a < at.size(); ++a) distance += std::fabs(call.at[a] - at[a]);
      if (distance < least) least = distance, nearest = &call;
    }
    if (nearest) return TimeAt(*nearest, kernel, least);
  }
  return std::nullopt;
}

std::vector<Prior::MeasuredCall> Prior::MeasuredCalls() const {
  std::vector<MeasuredCall> found;
  for (const auto& [key, groups] : calls_) {
    if (std::get<2>(key)) continue;
    for (const auto& [options, calls] : groups) {
      for (const Call& call : calls) {
        MeasuredCall& one = found.emplace_back(MeasuredCall{std::get<0>(key), {}});
        for (const auto& [kernel, time] : call.cold.empty() ? call.warm : call.cold) {
          one.us[kernel.substr(0, kernel.rfind(' '))] = time.time.median_us;
        }
      }
    }
  }
  return found;
}

std::optional<PriorTime> Prior::TimeAt(const Call& call, const KernelEntry& kernel, double distance) {
  const auto& times = call.cold.empty() ? call.warm : call.cold;
  const auto time = times.find(KernelKey(kernel.id, std::to_string(kernel.spec.version)));
  if (time == times.end()) return std::nullopt;
  PriorTime found = time->second.time;
  const std::string &measured = time->second.version, &loaded = kernel.availability.version;
  found.other_version = !loaded.empty() && !IsSameVersion(measured, loaded);
  found.noise += kNoiseOfDistance * distance;
  if (distance > kNear) found.confidence *= 0.5;
  return found;
}

}  // namespace lz::perfdb
