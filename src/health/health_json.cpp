// Health as JSON and as text, for Python, the command line and explain.
#include <algorithm>
#include <array>
#include <ctime>

#include "base/embedded.h"
#include "health/health.h"
#include "health/known_wrong.h"
#include "policy/policy.h"

namespace lz {
namespace {

constexpr auto kCarried = std::to_array<Embedded>({
#include "known_wrong.inc"
});

std::string TimeText(int64_t seconds) {
  const std::time_t time = seconds;
  std::tm parts{};
  char text[32] = "";
  if (gmtime_r(&time, &parts)) std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M UTC", &parts);
  return text;
}

std::string ConditionsText(const std::vector<CallCondition>& when) {
  std::string text;
  for (const CallCondition& c : when) {
    text +=
        (text.empty() ? "" : " and ") + c.field + " " + std::string(RelText(c.rel)) + " " + std::to_string(c.operand);
  }
  return text.empty() ? "every call" : text;
}

}  // namespace

std::vector<std::string_view> KnownWrong() {
  std::vector<std::string_view> texts;
  for (const Embedded& file : kCarried) texts.push_back(file.json);
  return texts;
}

std::string Health::OpenText(const KernelEntry& kernel, int32_t device) {
  std::lock_guard lock(mutex_);
  const double now = Now();
  const Entry* const e = Find(kernel, device);
  if (!e || e->breaker.state(now) == BreakerState::kClosed) {
    return "several kernels of " + kernel.source + " keep failing, so none of them is selected now";
  }
  const std::string last = ", the last time with: " + e->last;
  if (e->breaker.state(now) == BreakerState::kHalfOpen) return "it has failed and one call is trying it now" + last;
  const auto seconds = int64_t(e->breaker.retry_at() - now) + 1;
  return "it has failed " + std::to_string(e->breaker.failures_in_a_row()) + " times and is tried again in " +
         std::to_string(seconds) + " s" + last;
}

std::string Health::RowText(int64_t number) {
  std::lock_guard lock(mutex_);
  const QuarantineRow& row = rows_[size_t(number)];
  std::string text = std::string(kOutcomeNames[size_t(row.outcome)]) + ": " + row.detail + " (" + row.origin;
  if (row.since != 0) text += ", since " + TimeText(row.since);
  if (row.until != 0) text += ", until " + TimeText(row.until);
  return text + ")";
}

bool Health::IsAboutCaptures(int64_t number) {
  std::lock_guard lock(mutex_);
  return std::ranges::count(rows_[size_t(number)].when, CallCondition{"capturing", Rel::kEq, 1}) > 0;
}

bool Health::IsInForce(const QuarantineRow& row) const {
  if (row.HasEnded(std::time(nullptr))) return false;
  const auto kernels = registry_.Kernels(nullptr);
  return std::ranges::any_of(kernels, [&](const KernelEntry* k) {
    return GlobMatch(row.kernel, k->id) && GlobMatch(row.operation, k->operation) &&
           (row.version.empty() || row.version == KernelVersion(*k, limits_.build)) &&
           (row.library_versions == VersionRange() || row.library_versions.Holds(k->availability.version));
  });
}

nlohmann::json Health::ToJson() {
  using Json = nlohmann::json;
  std::lock_guard lock(mutex_);
  const double now = Now();
  Json reasons = Json::array(), breakers = Json::array(), quarantine = Json::array(), graph_safe = Json::array();
  const auto reason = [&](std::string_view code, std::string text, std::string_view fix) {
    reasons.push_back({{"code", code}, {"text", std::move(text)}, {"fix", fix}});
  };
  for (const auto& [device, why] : lost_) {
    reason("CONTEXT_LOST", "device " + std::to_string(device) + " serves this process no more: " + why,
           "start the process again");
  }
  const int used = BudgetUsed(now);
  if (used > limits_.error_budget) {
    reason("ERROR_BUDGET_SPENT",
           std::to_string(used) + " runs of kernels failed within 10 minutes, health.error_budget allows " +
               std::to_string(limits_.error_budget),
           "start the process again, or deny the kernels that fail");
  }
  const bool restart = !reasons.empty();
  size_t open = 0;
  for (const auto& [key, e] : entries_) {
    Json counts = Json::object();
    for (size_t i = 1; i < e.counts.size(); ++i) {
      if (e.counts[i] > 0) counts[std::string(kOutcomeNames[i])] = e.counts[i];
    }
    const BreakerState state = e.breaker.state(now);
    open += state != BreakerState::kClosed && !registry_.IsRemoved(*e.kernel);
    if (counts.empty() && state == BreakerState::kClosed) continue;
    breakers.push_back({{"kernel_id", e.kernel->id},
                        {"operation", e.kernel->operation},
                        {"backend", e.kernel->source},
                        {"device", e.device},
                        {"state", kBreakerStateNames[size_t(state)]},
                        {"failures_in_a_row", e.breaker.failures_in_a_row()},
                        {"retry_in_s", state == BreakerState::kOpen ? Json(e.breaker.retry_at() - now) : Json(nullptr)},
                        {"retry_s", state == BreakerState::kClosed ? Json(nullptr) : Json(e.breaker.retry_s())},
                        {"outcomes", std::move(counts)},
                        {"last", e.last}});
  }
  if (open > 0) {
    reason("BACKEND_ERROR", std::to_string(open) + " kernels keep failing and are not selected now",
           "see breakers; `layerzero health reset` closes them");
  }
  size_t learned = 0;
  for (size_t i = 0; i < rows_.size(); ++i) {
    if (removed_[i]) continue;
    const QuarantineRow& row = rows_[i];
    Json j = RowToJson(row);
    const bool in_force = IsInForce(row);
    const bool is_proof = row.outcome == Outcome::kGraphSafe;
    learned += in_force && !is_proof && row.origin != "known_wrong.json";
    j["calls"] = ConditionsText(row.when);
    j["origin"] = row.origin;
    j["in_force"] = in_force;
    (is_proof ? graph_safe : quarantine).push_back(std::move(j));
  }
  if (learned > 0) {
    reason("QUARANTINED", std::to_string(learned) + " rows of this machine keep kernels from being selected",
           "see quarantine; `layerzero health reset` removes them");
  }
  return {{"status", restart           ? "restart"
                     : reasons.empty() ? "ok"
                                       : "degraded"},
          {"reasons", std::move(reasons)},
          {"error_budget", {{"used", used}, {"allowed", limits_.error_budget}, {"seconds", int(kBudgetSeconds)}}},
          {"shadow", {{"right", shadow_right_.load()}, {"wrong", shadow_wrong_.load()}}},
          {"breakers", std::move(breakers)},
          {"quarantine", std::move(quarantine)},
          {"graph_safe", std::move(graph_safe)},
          {"folder", limits_.folder.empty() ? Json(nullptr) : Json(limits_.folder)},
          {"problem", problem_.empty() ? Json(nullptr) : Json(problem_)}};
}

}  // namespace lz
