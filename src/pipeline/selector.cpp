#include "pipeline/selector.h"

#include <algorithm>
#include <chrono>

#include "pipeline/dispatch_observer.h"
#include "platform/cuda_driver.h"
#include "policy/trust.h"

namespace lz {
namespace {

// Bytes that one workspace may take if `free` bytes are free. No headroom is kept on a GPU: a cache of keys and values
// fills it on purpose, and other kernels allocate more than a workspace.
int64_t BudgetOf(const Policy& policy, int64_t free, bool on_host = true) {
  const int64_t share = int64_t(double(free) * policy.memory_block_fraction);
  if (!on_host) return share;
  return std::max<int64_t>(0, std::min(share, free - policy.memory_headroom_mb * (int64_t{1} << 20)));
}

// A locked kernel of another operation of the same contract is a candidate too; its reasons are what makes the call
// another operation, for example that it takes no grouped heads.
void AddLocked(const BoundCall& r, const Device& device, const OperationPolicy& policy, SelectionReport* report) {
  const auto is_locked = [&](const auto& c) { return c.kernel->id == report->lock; };
  if (report->lock.empty() || std::ranges::any_of(report->candidates, is_locked)) return;
  for (size_t v = 0; v < r.state->kernels.size(); ++v) {
    const auto& kernels = r.state->kernels[v];
    const auto at = std::ranges::find_if(kernels, [&](const KernelEntry* k) { return k->id == report->lock; });
    if (at == kernels.end()) continue;
    Candidate c;
    c.kernel = *at;
    for (const Row& row : r.state->variant_conditions[v]) {
      const Surroundings around{device.facts, policy.facts};
      const uint16_t field = row.predicate < 0 ? row.field : kNoField;
      if (RowHolds(r, row, around)) continue;
      c.reasons.push_back({row.code, row.rel, field, kNoRow, row.operand, RowValue(r, row, around)});
    }
    if (c.reasons.empty()) c.reasons.push_back({ReasonCode::kConstraintFailed, Rel::kEq, kNoField, kNoRow, 0, 0});
    report->candidates.push_back(std::move(c));
    return;
  }
}

// Call it inside the Reclaimer::Guard of the look-up. `generation`: of before the look-up or the selection.
void Refill(const BoundCall& r, const Plan& plan, uint64_t generation, InlineCache* site) {
  r.state->classifier.RangeOf(r.facts, &site->lo, &site->hi);
  site->generation = generation;
  site->plan = &plan;
}

// The outputs that have no tensor yet have shapes, without memory, while this exists.
class OutputShapes {
 public:
  explicit OutputShapes(Request& r) : request_(r) {
    for (size_t o = 0; o < r.op->num_outputs(); ++o) {
      unset_[o] = r.outputs[o].ndim >= 0 && r.tensors[r.op->num_inputs() + o].ndim < 0;
      if (unset_[o]) BindOutput(r, o, nullptr);
    }
  }
  ~OutputShapes() {
    for (size_t o = 0; o < request_.op->num_outputs(); ++o) {
      if (unset_[o]) request_.tensors[request_.op->num_inputs() + o] = AbsentTensor();
    }
  }
  OutputShapes(const OutputShapes&) = delete;
  OutputShapes& operator=(const OutputShapes&) = delete;

 private:
  Request& request_;
  std::array<bool, kMaxOutputs> unset_{};
};

// Passes a selection to the observers, if there are any.
void Report(Request& r, const SelectionReport& report, std::chrono::steady_clock::time_point start) {
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  if (!AnySelectionObserver()) return;
  const OutputShapes shapes(r);
  ReportSelection({.request = r, .report = report, .seconds = took.count()});
}

LayoutRules LayoutRulesFrom(const Policy& policy) {
  return {policy.layout_head_counts, policy.strict_mode, policy.layout_warn_interval_s};
}

}  // namespace

Selector::Selector() : registry_(CheckedLibraries()) {
  for (size_t i = 0; i < registry_.operations().size(); ++i) caches_.push_back(std::make_unique<PlanCache>(epochs_));
}

Status Selector::Bind(Request& r) {
  r.capture = 0;
  if (r.stream && CudaStreamIsCapturing(r.stream, &r.capture)) r.flags |= LZ_FLAG_CAPTURING;
  const LayoutRules& rules = r.layout == kDetectLayout ? LayoutRulesOf(r.policy) : kDefaultLayoutRules;
  LZ_RETURN_IF_ERROR(lz::Bind(r, rules));  // 1
  LZ_RETURN_IF_ERROR(context_.Place(r));   // 2
  RefreshFacts(r);
  return {};
}

const Plan* Selector::Lookup(Request& r, InlineCache& site, Missed* missed) const {
  if (const Plan* plan = LookupInline(site, r.facts, epochs_)) return plan;
  const uint64_t generation = epochs_.Generation();  // before reading anything that it versions
  const Reclaimer::Guard guard;
  const Plan* plan = Lookup(r, missed);
  site.plan = nullptr;
  if (plan) Refill(r, *plan, generation, &site);
  return plan;
}

Result<const Plan*> Selector::Select(Request& r) {
  if (r.capture != 0) [[unlikely]]
    return SelectInCapture(r);
  Missed missed;
  if (const Plan* plan = Lookup(r, &missed)) return plan;  // 4
  if (before_selecting_) before_selecting_(r);
  bool keep;
  return SelectProven(r, missed, &keep);
}

Result<const Plan*> Selector::Select(Request& r, InlineCache& site) {
  if (r.capture != 0) [[unlikely]]
    return SelectInCapture(r);
  if (before_selecting_) before_selecting_(r);
  const uint64_t generation = epochs_.Generation();
  const Reclaimer::Guard guard;
  Missed missed;
  const Plan* plan = Lookup(r, &missed);  // 4
  if (!plan) return Select(r, site, missed);
  Refill(r, *plan, generation, &site);
  return plan;
}

Result<const Plan*> Selector::Select(Request& r, InlineCache& site, Missed& missed) {
  if (before_selecting_) before_selecting_(r);
  const uint64_t generation = epochs_.Generation();
  const Reclaimer::Guard guard;
  site.plan = nullptr;
  bool keep = false;
  auto plan = SelectProven(r, missed, &keep);
  if (plan.ok() && keep) Refill(r, **plan, generation, &site);
  return plan;
}

// Tries the libraries that the choice rests on. `*keep`: the choice may be remembered, here and by the caller.
Result<const Plan*> Selector::SelectProven(Request& r, Missed& missed, bool* keep) {
  const Reclaimer::Guard guard;
  Backends not_now;
  while (true) {
    Backend* due = nullptr;
    auto plan = SelectNew(r, missed, not_now, keep, &due);
    if (!due) return plan;
    if (!Prove(*due)) not_now.push_back(due);
  }
}

// `due`: a library that has to be tried before the choice holds; no other thread waits for this selection meanwhile.
Result<const Plan*> Selector::SelectNew(Request& r, Missed& missed, const Backends& not_now, bool* keep,
                                        Backend** due) {
  const EpochValues epochs = epochs_.Current();  // before reading anything that they version
  auto policy = policies_.For(r.policy, *r.op);  // 3; may split classes further
  if (!policy.ok()) return policy.TakeStatus();
  const Policy& p = *(*policy)->policy;
  const TablePart table = TableFor(r);
  r.machine = &context_.device(r.device);
  RefreshFacts(r);
  *keep = p.cache_enabled;
  PlanCache& cache = *caches_[r.op->index()];
  const auto find = [&] { return cache.Find(r.state->classifier, r.facts, &missed.key, &missed.hash); };
  std::shared_ptr<SingleFlight::Flight> flight;
  if (p.cache_enabled) {
    if (missed.generation != r.facts.v[kSlotGeneration]) {  // of other classes
      missed.generation = r.facts.v[kSlotGeneration];
      if (const Plan* plan = find()) return plan;
    }
    if (p.cache_deduplication) {
      flight = flights_.Join(r.op, missed.key, missed.hash);
      // A leader looks again: another flight of this key may have completed between the miss and Join.
      if (const Plan* plan = find()) {
        if (flight) flights_.Complete(flight);
        return plan;
      }
    }
  }
  selections_.fetch_add(1, std::memory_order_relaxed);
  const auto start = std::chrono::steady_clock::now();
  bool trial = false;
  const Without without = {.backends = not_now, .table = &table};
  auto report = Evaluate(r, **policy, without);
  *due = report.ok() ? Due(*report, Proofs::kPlan) : nullptr;
  while (report.ok() && report->plan && !*due && !health_.MayRun(*report->plan->kernel, r.device, &trial)) {
    report = Evaluate(r, **policy, without);  // another call has just begun to try that kernel
    *due = report.ok() ? Due(*report, Proofs::kPlan) : nullptr;
  }
  Result<const Plan*> result = Choice(report);
  *keep = *keep && result.ok() && !*due && !report->temporary && !trial;
  if (*keep) cache.Insert(missed.key, missed.hash, epochs, *result, size_t(p.cache_max_size));
  if (flight) flights_.Complete(flight);
  r.missed = true;
  if (table.table && report.ok() && !*due) table.table->Count(report->table);
  if (report.ok() && !*due) Report(r, *report, start);
  return result;
}

Result<const Plan*> Selector::Choice(Result<SelectionReport>& report) {
  if (!report.ok()) return report.TakeStatus();
  if (report->winner < 0) return NoKernel(*report);
  return report->plan;
}

Result<SelectionReport> Selector::Explain(Request& r, Proofs proofs) {
  const Reclaimer::Guard guard;
  if (before_selecting_) before_selecting_(r);
  auto policy = policies_.For(r.policy, *r.op);
  if (!policy.ok()) return policy.TakeStatus();
  const TablePart table = TableFor(r);
  r.machine = &context_.device(r.device);
  RefreshFacts(r);
  return EvaluateProven(r, **policy, proofs, &table);
}

Result<SelectionReport> Selector::Evaluate(Request& r, const OperationPolicy& policy, const Without& without) {
  const Policy& p = *policy.policy;
  LZ_RETURN_IF_ERROR(LostDevice(r));
  const Device& device = context_.device(r.device);
  SelectionReport report;
  report.op = r.op;
  report.device = r.device;
  report.policy_hash = p.hash;
  report.policy_facts = policy.facts;
  report.variant = VariantOf(r);
  if (report.variant < 0) {
    return Status(StatusCode::kInvalidRequest, {.field = std::string(r.op->name()),
                                                .wanted = "a call that is one of its operations",
                                                .got = "one that none of them describes"});
  }
  report.lock = LockOf(r, report.variant, device, policy);
  const bool asks = without.table && without.table->table && report.lock.empty();
  const KernelEntry* const chosen = asks ? FromTable(r, policy, *without.table, &report) : nullptr;
  FilterAll(r, policy, without, without.explains || !chosen || chosen->spec.reference ? nullptr : chosen, &report);
  const auto takes = [&](const Candidate& c) { return c.kernel == chosen && c.admissible(); };
  const auto at = std::ranges::find_if(report.candidates, takes);
  const int of_table = at == report.candidates.end() ? -1 : int(at - report.candidates.begin());
  if (chosen && of_table < 0) {
    report.table = TableUse::kRefused;
    if (!without.explains) FilterAll(r, policy, without, nullptr, &report);
  }
  Choose(r, p, without, of_table, &report);
  AddLocked(r, device, policy, &report);
  report.wanted = WantedIfCompiled(r, p, without, report);
  if (report.wanted) report.wanted_kind = JitKindOf(r, *report.wanted, {device.facts, policy.facts});
  if (report.winner < 0 && report.wanted && !p.jit_fail_on_no_fallback && !without.may_compile) {
    Without waiting = without;
    waiting.may_compile = true;
    return Evaluate(r, policy, waiting);
  }
  if (report.winner >= 0) report.plan = MakePlan(report, p);  // 7
  return report;
}

void Selector::FilterAll(Request& r, const OperationPolicy& policy, const Without& without, const KernelEntry* only,
                         SelectionReport* report) {
  const Device& device = context_.device(r.device);
  report->candidates = Filter(r, report->variant, device, policy, without.backends, without.may_compile, only);  // 5
  FilterByHealth(r, policy, without, &report->candidates);
  report->temporary =
      ApplyHeadroom(r, *policy.policy, &report->candidates) || !without.backends.empty() || !without.failed.empty();
}

// `of_table`: index of the table's choice, which needs no score; -1: none.
void Selector::Choose(Request& r, const Policy& p, const Without& without, int of_table, SelectionReport* report) {
  int best = of_table;
  if (of_table < 0 || without.explains) best = Best(r, p, without, &report->candidates);  // 6
  if (of_table >= 0) best = of_table;
  if (report->lock.empty()) {
    const bool is_reference = best >= 0 && report->candidates[size_t(best)].kernel->spec.reference;
    if (best >= 0 && (!is_reference || p.fallback_enabled || !p.enabled)) report->winner = best;
    return;
  }
  for (size_t i = 0; i < report->candidates.size(); ++i) {
    const Candidate& c = report->candidates[i];
    if (c.kernel->id == report->lock && c.admissible()) report->winner = int(i);
  }
}

// Refuses kernels whose workspace would leave less than the policy's headroom, or take more than its fraction of free
// memory; the one with the smallest workspace stays if there is no other. Returns true if some were refused.
bool Selector::ApplyHeadroom(Request& r, const Policy& policy, std::vector<Candidate>* candidates) const {
  constexpr uint64_t kSmall = 1 << 20;
  const Device& device = context_.device(r.device);
  const bool on_host = device.platform == Platform::kCpu;
  int64_t budget = -1;
  Candidate* smallest = nullptr;
  uint64_t smallest_bytes = UINT64_MAX;
  bool other = false;
  const OutputShapes shapes(r);  // workspace functions read them
  for (Candidate& c : *candidates) {
    if (!c.admissible()) continue;
    const uint64_t bytes = WorkspaceBytes(c, r);
    if (bytes > kSmall && budget < 0) {
      const int64_t free = free_memory_.Of(r, device);
      budget = free == INT64_MAX ? free : BudgetOf(policy, free, on_host);
    }
    if (bytes <= kSmall || bytes <= uint64_t(budget)) {
      // A reference on a GPU allocates more than it declares: it is no way out.
      other |= on_host || !c.kernel->spec.reference;
      continue;
    }
    c.reasons.push_back({ReasonCode::kMemoryHeadroomExceeded, Rel::kLe, kNoField, kNoRow, budget, int64_t(bytes)});
    if (bytes < smallest_bytes) smallest = &c, smallest_bytes = bytes;
  }
  if (smallest && !other) smallest->reasons.pop_back();
  return smallest != nullptr;
}

Status Selector::MayTake(void* self, const Request& r, uint64_t bytes) {
  auto& selector = *static_cast<Selector*>(self);
  auto policy = selector.policies_.policy(r.policy);
  const int64_t free = selector.free_memory_.OfHost();
  if (!policy.ok() || free < 0 || bytes <= uint64_t(BudgetOf(**policy, free))) return {};
  return Status(StatusCode::kNoKernel,
                {.field = std::string(r.op->name()) + ": workspace",
                 .wanted = std::to_string((*policy)->memory_headroom_mb) + " MiB left free (memory_headroom_mb)",
                 .got = std::to_string(bytes) + " bytes wanted of " + std::to_string(free) + " free",
                 .fix = std::string(Info(ReasonCode::kMemoryHeadroomExceeded).fix)});
}

const Candidate* Selector::Reference(const SelectionReport& report) {
  const Candidate* best = nullptr;
  for (const Candidate& c : report.candidates) {
    if (!c.admissible() || !c.kernel->spec.reference) continue;
    if (!best || c.priority > best->priority) best = &c;
  }
  return best;
}

const Plan* Selector::MakePlan(const SelectionReport& report, const Policy& policy) {
  const Candidate& c = report.candidates[size_t(report.winner)];
  Plan plan;
  plan.kernel = c.kernel;
  plan.transforms = c.transforms;
  plan.locked = !report.lock.empty();
  if (c.kernel->spec.reference && !plan.locked && policy.enabled) plan.reference_use = ReferenceUseOf(report);
  plan.strict = policy.strict_mode;
  plan.checked = policy.debug;
  const Candidate* reference = Reference(report);
  if (policy.fallback_enabled && !plan.locked && !c.kernel->spec.reference && reference) {
    plan.fallback = reference->kernel;
    plan.fallback_transforms = reference->transforms;
  }
  if (plan.checked && reference) plan.reference = reference->kernel;
  plan.health = &health_;
  const Plan* const interned = plans_.Intern(plan);
  if (health_.Watches(*plan.kernel, report.device)) interned->Watch(true);
  return interned;
}

Status Selector::NoKernel(const SelectionReport& report) {
  const std::string_view id = report.op->contract().variants[size_t(report.variant)].id;
  if (const std::string unsafe = UnsafeInGraphs(report); !unsafe.empty()) {
    return Status(StatusCode::kGraphUnsafe,
                  {.field = std::string(id),
                   .wanted = "a kernel that is known to be safe in a CUDA graph",
                   .got = "only " + unsafe + ", excluded because they are not",
                   .fix = "prove them before the capture with layerzero.graphs.verify, call it outside of the capture, "
                          "or change the call so that another kernel takes it"});
  }
  if (!report.lock.empty()) {
    const bool known = std::any_of(report.candidates.begin(), report.candidates.end(),
                                   [&](const Candidate& c) { return c.kernel->id == report.lock; });
    return Status(StatusCode::kNoKernel, {.field = std::string(id),
                                          .wanted = "the locked kernel '" + report.lock + "'",
                                          .got = report.wanted ? "one that is not compiled for such calls yet"
                                                 : known       ? "a refusal by its own rules"
                                                               : "no kernel of that id for this operation",
                                          .fix = "`layerzero explain` shows the reasons; unlock, or change the call"});
  }
  return Status(StatusCode::kNoKernel, {.field = std::string(id),
                                        .wanted = "a kernel that may run here",
                                        .got = std::to_string(report.candidates.size()) + " kernels, all refused",
                                        .fix = "`layerzero explain` shows every reason"});
}

Result<const Plan*> Selector::SelectWithLess(Request& r) {
  const Reclaimer::Guard guard;
  free_memory_.Forget();
  auto policy = policies_.For(r.policy, *r.op);
  if (!policy.ok()) return policy.TakeStatus();
  RefreshFacts(r);
  auto report = EvaluateProven(r, **policy, Proofs::kPlan);
  return Choice(report);
}

Status Selector::RunOnce(const Plan& plan, Request& r) {
  Status status = Dispatch(plan, r, {parallel_, &MayTake, this});  // 8
  if (status.code() == StatusCode::kNoKernel) [[unlikely]] {       // no headroom for this call's sizes
    auto fits = SelectWithLess(r);
    if (!fits.ok()) return fits.TakeStatus();
    status = Dispatch(**fits, r, {parallel_});
  }
  plan.CountCall();
  return status;
}

const LayoutRules& Selector::LayoutRulesOf(int64_t id) {
  struct Known {
    const Selector* of = nullptr;
    int64_t id = 0;
    uint64_t epoch = 0;
    LayoutRules rules;
  };
  static thread_local Known known;
  const uint64_t epoch = epochs_.Current()[size_t(EpochKind::kPolicy)];
  if (known.of != this || known.id != id || known.epoch != epoch) {
    const auto policy = policies_.policy(id);
    known = {this, id, epoch, policy.ok() ? LayoutRulesFrom(**policy) : LayoutRules()};
  }
  return known.rules;
}

CacheStats Selector::cache_stats() const {
  CacheStats total;
  for (const auto& cache : caches_) {
    const CacheStats s = cache->stats();
    total.entries += s.entries;
    total.inserted += s.inserted;
    total.evicted += s.evicted;
    total.invalidated += s.invalidated;
  }
  return total;
}

}  // namespace lz
