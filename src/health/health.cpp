#include "health/health.h"

#include <algorithm>
#include <chrono>
#include <ctime>

#include "health/known_wrong.h"
#include "perfdb/device_id.h"
#include "policy/policy.h"
#include "registry/descriptor.h"

namespace lz {
namespace {

double SteadySeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Of this build: its tests have run it, so its first run in a process is not marked.
bool IsOwn(const KernelEntry& k) {
  return k.spec.call == CallKind::kNative && k.origin != "plugin" && k.spec.open == nullptr;
}

std::string DriverOf(const Device& device) {
  const int64_t driver = device.fact(DeviceField::kDriverVersion);
  return driver == 0 ? "" : std::to_string(driver / 1000) + "." + std::to_string(driver % 1000);
}

}  // namespace

std::string KernelVersion(const KernelEntry& k, const std::string& build) {
  std::string version = k.availability.version.empty() ? build : k.source + " " + k.availability.version;
  version += ", row " + std::to_string(k.spec.version);
  if (!k.descriptor.empty()) version += ", " + k.descriptor.substr(0, 12);
  return version;
}

Health::Health(Registry& registry, Devices devices, std::function<void()> changed)
    : registry_(registry), devices_(std::move(devices)), changed_(std::move(changed)), clock_(&SteadySeconds) {}

void Health::SetLimits(HealthLimits limits) {
  std::lock_guard lock(mutex_);
  limits_ = std::move(limits);
}

// Call it without the mutex.
void Health::Changed() { changed_(); }

// ---- quarantine

QuarantineRow Health::RowOf(const KernelEntry& k, int32_t index, std::vector<CallCondition> call) const {
  const Device& device = devices_(index);
  QuarantineRow row;
  row.kernel = k.id;
  row.operation = k.operation;
  row.when = std::move(call);
  row.device = perfdb::DeviceId(device);
  row.version = KernelVersion(k, limits_.build);
  row.driver = DriverOf(device);
  row.since = int64_t(std::time(nullptr));
  row.origin = limits_.folder.empty() ? "this process" : QuarantineFile(limits_.folder).path();
  return row;
}

bool Health::RowHolds(size_t number, const KernelEntry& k, int32_t index) const {
  const QuarantineRow& row = rows_[number];
  if (removed_[number] || !GlobMatch(row.kernel, k.id) || !GlobMatch(row.operation, k.operation)) return false;
  if (row.HasEnded(std::time(nullptr))) return false;
  if (!row.version.empty() && row.version != KernelVersion(k, limits_.build)) return false;
  if (row.library_versions != VersionRange() && !row.library_versions.Holds(k.availability.version)) return false;
  const Device& device = devices_(index);
  if (!row.device.empty() && row.device != perfdb::DeviceId(device)) return false;
  const std::string driver = DriverOf(device);
  if (!row.driver.empty() && row.driver != driver) return false;
  return row.driver_versions == VersionRange() || (!driver.empty() && row.driver_versions.Holds(driver));
}

// A row with a condition on a field that an operation does not have is not about that operation.
void Health::AddRow(QuarantineRow row) {
  std::vector<Constraint> conditions;
  for (const CallCondition& c : row.when) conditions.push_back({.field = c.field, .rel = c.rel, .operand = c.operand});
  std::vector<std::pair<const Operation*, Registry::Thresholds>> resolved;
  for (const auto& op : registry_.operations()) {
    const auto& variants = op->contract().variants;
    if (std::ranges::none_of(variants, [&](const Variant& v) { return GlobMatch(row.operation, v.id); })) continue;
    auto rows = registry_.AddThresholds(*op, conditions);
    if (rows.ok()) resolved.emplace_back(op.get(), std::move(*rows));
  }
  std::lock_guard lock(mutex_);
  const auto same =
      std::ranges::find_if(rows_, [&](const QuarantineRow& r) { return r.IsSame(row) && r.origin == row.origin; });
  const auto number = size_t(same - rows_.begin());
  if (same == rows_.end()) {
    rows_.emplace_back();
    removed_.push_back(false);
  }
  for (auto& [op, rows] : resolved) {
    auto& list = resolved_[op];
    std::erase_if(list, [&](const Resolved& r) { return r.row == number || removed_[r.row]; });
    list.push_back({number, std::move(rows)});
  }
  rows_[number] = std::move(row);
  removed_[number] = false;
}

void Health::Learn(QuarantineRow row) {
  std::string folder;
  {
    std::lock_guard lock(mutex_);
    folder = limits_.folder;
  }
  if (!folder.empty()) {
    Status written = QuarantineFile(folder).Update(
        [&](std::vector<QuarantineRow>* rows) { row = QuarantineRow(AddTo(rows, std::move(row))); });
    if (!written.ok()) {
      std::lock_guard lock(mutex_);
      problem_ = written.Text();
    }
  }
  AddRow(std::move(row));
}

void Health::ReadMarks(const std::string& folder) {
  for (const std::string& text : Markers::Collect(folder)) {
    auto rows = ReadQuarantine(text, "a mark");
    if (!rows.ok() || rows->size() != 1) continue;
    QuarantineRow row = std::move((*rows)[0]);
    row.since = int64_t(std::time(nullptr));
    row.until = row.since + kFirstStrikeSeconds;
    row.origin = QuarantineFile(folder).path();
    Learn(std::move(row));
  }
}

void Health::Begin() {
  if (begun_.load(std::memory_order_acquire) || begun_.exchange(true)) return;
  const std::string folder = [&] {
    std::lock_guard lock(mutex_);
    return limits_.folder;
  }();
  std::string problem;
  for (const std::string_view text : KnownWrong()) {
    auto rows = ReadQuarantine(text, "known_wrong.json");
    if (rows.ok()) {
      for (QuarantineRow& row : *rows) AddRow(std::move(row));
    }
    if (!rows.ok()) problem = rows.status().Text();
  }
  if (!folder.empty()) {
    auto rows = QuarantineFile(folder).Read();
    if (!rows.ok()) problem = rows.status().Text();
    if (rows.ok()) {
      for (QuarantineRow& row : *rows) AddRow(std::move(row));
    }
    ReadMarks(folder);
  }
  {
    std::lock_guard lock(mutex_);
    if (!problem.empty()) problem_ = problem;
    if (rows_.empty()) return;
  }
  Changed();
}

Health::Query::Query(Health& health, const Operation& op, int32_t device)
    : health_(health), lock_(health.mutex_), device_(device), failures_(!health.quiet()), now_(health.Now()) {
  const auto rows = health.resolved_.find(&op);
  if (rows != health.resolved_.end()) rows_ = &rows->second;
}

// ---- breakers

Health::Entry& Health::Of(const KernelEntry& kernel, int32_t device) {
  Entry& e = entries_[{kernel.index, device}];
  e.kernel = &kernel;
  e.device = device;
  return e;
}

Health::Entry* Health::Find(const KernelEntry& kernel, int32_t device) {
  const auto at = entries_.find({kernel.index, device});
  return at == entries_.end() ? nullptr : &at->second;
}

// The kernels of a backend whose breakers are open on a device, without those that were unregistered.
int Health::OpenOf(const std::string& source, int32_t device, double now) const {
  return int(std::ranges::count_if(entries_, [&](const auto& entry) {
    const Entry& e = entry.second;
    return e.device == device && e.kernel->source == source && e.breaker.state(now) == BreakerState::kOpen &&
           !registry_.IsRemoved(*e.kernel);
  }));
}

bool Health::IsOpen(const KernelEntry& kernel, int32_t device, double now) {
  if (const Entry* e = Find(kernel, device)) {
    const BreakerState state = e->breaker.state(now);
    if (state == BreakerState::kOpen) return true;
    if (state == BreakerState::kHalfOpen) return e->breaker.trial_taken(now);
  }
  return OpenOf(kernel.source, device, now) >= kBackendFailures;
}

bool Health::MayRun(const KernelEntry& kernel, int32_t device, bool* trial) {
  *trial = false;
  if (quiet()) return true;
  std::lock_guard lock(mutex_);
  Entry* const e = Find(kernel, device);
  if (!e || kernel.spec.reference) return true;
  const double now = Now();
  if (e->breaker.state(now) != BreakerState::kHalfOpen) return e->breaker.state(now) == BreakerState::kClosed;
  *trial = e->breaker.ClaimTrial(now);
  return *trial;
}

std::string Health::LostBecause(int32_t device) {
  if (quiet()) return "";
  std::lock_guard lock(mutex_);
  const auto at = lost_.find(device);
  return at == lost_.end() ? "" : at->second;
}

bool Health::Watches(const KernelEntry& kernel, int32_t device) {
  if (kernel.spec.reference || (quiet() && IsOwn(kernel))) return false;
  std::lock_guard lock(mutex_);
  const Entry* const e = Find(kernel, device);
  if (!e) return !IsOwn(kernel);
  return e->breaker.counts() || (!e->left && !IsOwn(kernel));
}

bool Health::Passed(const KernelEntry& kernel, int32_t device) {
  bool closed, counts;
  {
    std::lock_guard lock(mutex_);
    Entry& e = Of(kernel, device);
    e.left = true;
    closed = e.breaker.Passed(Now());
    e.seen = closed ? BreakerState::kClosed : e.seen;
    counts = e.breaker.counts();
  }
  if (closed) Changed();
  return counts;
}

int Health::Entered(const KernelEntry& kernel, int32_t device, const std::vector<CallCondition>& call) {
  std::string folder, text;
  {
    std::lock_guard lock(mutex_);
    if (limits_.folder.empty() || IsOwn(kernel)) return -1;
    for (const auto& [key, e] : entries_) {
      if (e.kernel == &kernel && e.left) return -1;
    }
    folder = limits_.folder;
    QuarantineRow row = RowOf(kernel, device, call);
    row.outcome = Outcome::kCrashed;
    row.detail = "it was running for the first time in a process that ended: a crash, a hang or a kill";
    text = nlohmann::json{{"version", 1}, {"rows", {RowToJson(row)}}}.dump();
  }
  return markers_.Enter(folder, text);
}

void Health::Report(const Failure& f) {
  const bool of_device = f.outcome == Outcome::kContextLost;
  std::optional<QuarantineRow> learned;
  bool changed = of_device;
  {
    std::lock_guard lock(mutex_);
    const double now = Now();
    Entry& e = Of(f.kernel, f.device);
    e.left = true;
    ++e.counts[size_t(f.outcome)];
    e.last = f.text;
    const bool counts = of_device || f.outcome == Outcome::kFailed || f.outcome == Outcome::kWrong;
    if (counts) {
      auto& [step, failures] = failures_by_time_[size_t(now / (kBudgetSeconds / 60)) % 60];
      const auto current = int64_t(now / (kBudgetSeconds / 60));
      failures = step == current ? failures + 1 : 1;
      step = current;
      if (!f.kernel.spec.reference && e.breaker.Failed(now, limits_.breaker)) {
        e.seen = BreakerState::kOpen;
        changed = true;
      }
    }
    if (of_device) lost_.emplace(f.device, f.kernel.id + ": " + f.text);
    if (!f.kernel.spec.reference && (of_device || f.outcome == Outcome::kWrong || (counts && f.capturing))) {
      learned = RowOf(f.kernel, f.device, f.call);
      learned->outcome = f.outcome;
      learned->detail = f.text.substr(0, 400);
      if (of_device) learned->until = learned->since + kFirstStrikeSeconds;
      if (f.capturing) learned->when.push_back({"capturing", Rel::kEq, 1});
    }
    quiet_.store(false, std::memory_order_release);
  }
  if (learned) Learn(std::move(*learned));
  if (changed || learned) Changed();
  if (changed && !of_device) {
    std::lock_guard lock(mutex_);
    if (!std::exchange(ticking_, true)) {
      ticker_.Start(std::clamp(limits_.breaker.retry_s / 4, 0.02, 1.0), [this] { Tick(); });
    }
  }
}

void Health::SetGraphVerdict(const KernelEntry& kernel, int32_t device, std::vector<CallCondition> call,
                             Outcome outcome, const std::string& detail) {
  QuarantineRow row;
  {
    std::lock_guard lock(mutex_);
    row = RowOf(kernel, device, std::move(call));
  }
  row.when.push_back({"capturing", Rel::kEq, 1});
  row.outcome = outcome;
  row.detail = detail.substr(0, 400);
  Learn(std::move(row));
  Changed();
}

void Health::Lose(int32_t device, const std::string& why) {
  {
    std::lock_guard lock(mutex_);
    lost_.emplace(device, why);
    quiet_.store(false, std::memory_order_release);
  }
  Changed();
}

void Health::Tick() {
  bool due = false;
  {
    std::lock_guard lock(mutex_);
    const double now = Now();
    for (auto& [key, e] : entries_) {
      const BreakerState state = e.breaker.state(now);
      due |= state == BreakerState::kHalfOpen && e.seen == BreakerState::kOpen;
      e.seen = state;
    }
  }
  if (due) Changed();
}

void Health::AfterFork() { markers_.Forget(); }

int Health::BudgetUsed(double now) const {
  const auto current = int64_t(now / (kBudgetSeconds / 60));
  int used = 0;
  for (const auto& [step, failures] : failures_by_time_) used += current - step < 60 ? failures : 0;
  return used;
}

size_t Health::Reset(const std::string& kernel, Status* problem) {
  const auto matches = [&](std::string_view id) { return kernel.empty() || GlobMatch(kernel, id); };
  size_t changed = 0;
  std::string folder;
  {
    std::lock_guard lock(mutex_);
    changed += std::erase_if(entries_, [&](const auto& e) { return matches(e.second.kernel->id); });
    for (size_t i = 0; i < rows_.size(); ++i) {
      if (removed_[i] || rows_[i].origin == "known_wrong.json" || !matches(rows_[i].kernel)) continue;
      removed_[i] = true;
      ++changed;
    }
    for (auto& [op, list] : resolved_) {
      std::erase_if(list, [&](const Resolved& r) { return bool(removed_[r.row]); });
    }
    if (kernel.empty()) failures_by_time_ = {};
    folder = limits_.folder;
  }
  const QuarantineFile file(folder);
  const auto is_meant = [&](const QuarantineRow& row) { return matches(row.kernel); };
  if (folder.empty()) return changed_(), changed;
  const auto kept = file.Read();
  if (!kept.ok() || std::ranges::any_of(*kept, is_meant)) {
    *problem = file.Update([&](std::vector<QuarantineRow>* rows) { std::erase_if(*rows, is_meant); });
  }
  changed_();
  return changed;
}

}  // namespace lz
