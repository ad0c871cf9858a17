#include "perfdb/prior.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "perfdb/device_id.h"

namespace lz::perfdb {
namespace {

constexpr double kOtherCores = 0.5;    // confidence
constexpr double kNear = 2, kFar = 4;  // sums of |log2| over the axes
constexpr double kLeastNoise = 0.03;
constexpr double kNoiseOfDistance = 0.05;  // for each doubling between a call and its neighbour
constexpr double kCloseValues = 1.25;      // measured values that share a cell

double Log2(int64_t value) { return std::log2(double(std::max<int64_t>(value, 1))); }

// Half the width of a 95 % interval of the median, as a share of it; never below what one run differs from the next.
double NoiseOf(const Record& r) {
  if (!r.variance_us || r.samples < 2) return kLeastNoise;
  return std::max(kLeastNoise, 1.96 * 1.2533 * std::sqrt(*r.variance_us / double(r.samples)) / r.median_us);
}

std::string KernelKey(std::string_view id, std::string_view version) {
  return std::string(id) + " " + std::string(version);
}

}  // namespace

Prior::Prior(const Registry& registry, std::span<const std::vector<Record>> groups, std::string_view device_id) {
  std::set<std::string> taken;
  for (const std::vector<Record>& records : groups) {
    std::set<std::string> here;
    for (const Record& r : records) {
      const bool usable = r.valid && r.execution == "eager" && !r.is_causal && !r.quant_format;
      if (!usable || DeviceType(r.device_id) != DeviceType(device_id) || taken.contains(r.operation)) continue;
      Take(registry, r, r.device_id == device_id ? 1 : kOtherCores);
      here.insert(r.operation);
    }
    taken.merge(here);
  }
  for (auto& [op, axes] : axes_) {
    for (Axis& axis : axes) axis.Cut();
  }
}

void Prior::Take(const Registry& registry, const Record& r, double confidence) {
  const Operation* op = registry.Find(r.operation);
  const DType dtype = DTypeFromName(r.dtype);
  if (!op || Registry::VariantIndex(*op, r.operation) < 0 || dtype == DType::kUnknown) return;
  std::vector<double> at;
  std::vector<Axis>& axes = axes_.try_emplace(op, op->axes().size()).first->second;
  for (size_t a = 0; a < op->axes().size(); ++a) {
    const auto given = r.axes.find(op->axes()[a]);
    if (given == r.axes.end()) return;  // of another version of the contract
    at.push_back(Log2(given->second));
  }
  for (size_t a = 0; a < axes.size(); ++a) axes[a].values.push_back(r.axes.at(op->axes()[a]));
  std::vector<Call>& calls = calls_[{r.operation, dtype}];
  auto call = std::ranges::find_if(calls, [&](const Call& c) { return c.at == at; });
  if (call == calls.end()) call = calls.insert(calls.end(), Call{at, {}});
  call->times.insert_or_assign(KernelKey(r.kernel_id, r.kernel_version),
                               PriorTime{r.median_us, NoiseOf(r), confidence});
  ++num_records_;
}

void Prior::Axis::Cut() {
  if (values.empty()) return;
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

Status Prior::Watch(Registry& registry) const {
  for (const auto& [op, axes] : axes_) {
    std::vector<Constraint> conditions;
    for (size_t a = 0; a < axes.size(); ++a) {
      for (const int64_t cut : axes[a].cuts) conditions.push_back({op->axes()[a], Rel::kGe, cut});
    }
    auto rows = registry.Watch(*op, conditions);
    if (!rows.ok()) return rows.TakeStatus();
  }
  return {};
}

std::optional<PriorTime> Prior::Find(const KernelEntry& kernel, DType dtype, const int64_t* axes) const {
  const auto calls = calls_.find({kernel.operation, dtype});
  if (calls == calls_.end()) return std::nullopt;
  std::vector<double> at;
  const std::vector<Axis>& known = axes_.at(kernel.op);
  for (size_t a = 0; a < known.size(); ++a) {
    const std::vector<int64_t>& cuts = known[a].cuts;
    const auto cell = std::ranges::upper_bound(cuts, axes[a]) - cuts.begin() - 1;
    if (cell < 0 || size_t(cell) == known[a].values.size()) return std::nullopt;
    at.push_back(Log2(known[a].values[size_t(cell)]));
  }
  const Call* nearest = nullptr;
  double least = kFar;
  for (const Call& call : calls->second) {
    double distance = 0;
    for (size_t a = 0; a < at.size(); ++a) distance += std::fabs(call.at[a] - at[a]);
    if (distance < least) least = distance, nearest = &call;
  }
  if (!nearest) return std::nullopt;
  const auto time = nearest->times.find(KernelKey(kernel.id, std::to_string(kernel.spec.version)));
  if (time == nearest->times.end()) return std::nullopt;
  PriorTime found = time->second;
  found.noise += kNoiseOfDistance * least;
  if (least > kNear) found.confidence *= 0.5;
  return found;
}

}  // namespace lz::perfdb
