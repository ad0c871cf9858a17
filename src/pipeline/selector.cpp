#include "pipeline/selector.h"

#include <algorithm>

namespace lz {

Selector::Selector() {
  for (size_t i = 0; i < registry_.operations().size(); ++i) caches_.push_back(std::make_unique<PlanCache>(epochs_));
}

Status Selector::Prepare(Request& r) {
  LZ_RETURN_IF_ERROR(Bind(r));  // 1
  if (r.device < 0) {           // 2
    r.device = context_.IndexOf(r.where);
    if (r.device < 0) {
      const std::string why = context_.why_no_cuda();
      return Status(StatusCode::kInvalidRequest,
                    {.field = std::string(r.op->name()) + ": device",
                     .wanted = "tensors on a device that LayerZero knows (cpu, cuda)",
                     .got = "device type " + std::to_string(r.where.type) + (why.empty() ? "" : "; CUDA: " + why),
                     .fix = "move the tensors, or call torch's function"});
    }
  }
  r.facts.v[kSlotDevice] = r.device;
  return {};
}

Result<const Plan*> Selector::Select(Request& r) {
  Facts key;
  uint64_t hash;
  const PlanCache& cache = *caches_[r.op->index()];
  if (const Plan* plan = cache.Find(r.state->classifier, r.facts, &key, &hash)) return plan;  // 4
  return Miss(r, key, hash);
}

Result<const Plan*> Selector::Select(Request& r, Box& site) {
  if (const Plan* plan = LookupBox(site, r.facts, epochs_)) return plan;  // 4
  const EpochValues epochs = epochs_.Current();
  auto plan = Select(r);
  if (plan.ok()) {
    r.state->classifier.BoxOf(r.facts, &site.lo, &site.hi);
    site.epochs = epochs;
    site.plan = *plan;
  }
  return plan;
}

Result<const Plan*> Selector::Miss(Request& r, Facts& key, uint64_t hash) {
  auto policy = policies_.For(r.policy, *r.op);  // 3; may cut classes finer
  if (!policy.ok()) return policy.TakeStatus();
  PlanCache& cache = *caches_[r.op->index()];
  std::shared_ptr<SingleFlight::Flight> flight;
  if ((*policy)->policy->cache_enabled) {
    RefreshFacts(r);
    if (const Plan* plan = cache.Find(r.state->classifier, r.facts, &key, &hash)) return plan;
    if ((*policy)->policy->cache_deduplication) {
      flight = flights_.Board(r.op, key, hash);
      // A leader looks again too: another flight of this key may have landed between the miss and boarding.
      if (const Plan* plan = cache.Find(r.state->classifier, r.facts, &key, &hash)) {
        if (flight) flights_.Land(flight);
        return plan;
      }
    }
  }
  const EpochValues epochs = epochs_.Current();
  auto report = Evaluate(r);  // 5 and 6
  Result<const Plan*> result = [&]() -> Result<const Plan*> {
    if (!report.ok()) return report.TakeStatus();
    if (report->winner < 0) return NoKernel(*report);
    return report->plan;  // 7
  }();
  if (result.ok() && (*policy)->policy->cache_enabled) {
    (void)cache.Find(r.state->classifier, r.facts, &key, &hash);  // the key of the facts that were evaluated
    cache.Insert(key, hash, epochs, *result, size_t((*policy)->policy->cache_max_size));
  }
  if (flight) flights_.Land(flight);
  return result;
}

Result<SelectionReport> Selector::Evaluate(Request& r) {
  auto policy = policies_.For(r.policy, *r.op);
  if (!policy.ok()) return policy.TakeStatus();
  RefreshFacts(r);
  const Device& device = context_.device(r.device);
  SelectionReport report;
  report.op = r.op;
  report.device = r.device;
  report.policy_hash = (*policy)->policy->hash;
  report.variant = VariantOf(r);
  if (report.variant < 0) {
    return Status(StatusCode::kInvalidRequest, {.field = std::string(r.op->name()),
                                                .wanted = "a call that is one of its operations",
                                                .got = "one that none of them describes"});
  }
  report.candidates = Filter(r, report.variant, device, **policy);
  report.lock = LockOf(r, report.variant, device, **policy);
  const int best = Score(report.candidates, r, *(*policy)->policy, measurements_);
  if (report.lock.empty()) {
    const bool is_reference = best >= 0 && report.candidates[size_t(best)].kernel->spec.reference;
    if (best >= 0 && (!is_reference || (*policy)->policy->fallback_enabled || !(*policy)->policy->enabled))
      report.winner = best;
  } else {
    for (size_t i = 0; i < report.candidates.size(); ++i) {
      const Candidate& c = report.candidates[i];
      if (c.kernel->id == report.lock && c.admissible()) report.winner = int(i);
    }
  }
  if (report.winner >= 0) report.plan = MakePlan(report, *(*policy)->policy);
  return report;
}

const KernelEntry* Selector::Reference(const SelectionReport& report) const {
  const Candidate* best = nullptr;
  for (const Candidate& c : report.candidates) {
    if (!c.admissible() || !c.kernel->spec.reference) continue;
    if (!best || c.kernel->spec.priority > best->kernel->spec.priority) best = &c;
  }
  return best ? best->kernel : nullptr;
}

const Plan* Selector::MakePlan(const SelectionReport& report, const Policy& policy) {
  const Candidate& c = report.candidates[size_t(report.winner)];
  Plan plan;
  plan.kernel = c.kernel;
  plan.locked = !report.lock.empty();
  plan.uses_fallback = c.kernel->spec.reference;
  plan.contiguous_inputs = c.contiguous_inputs;
  if (policy.fallback_enabled && !plan.locked && !plan.uses_fallback) plan.fallback = Reference(report);
  return plans_.Intern(plan);
}

Status Selector::NoKernel(const SelectionReport& report) const {
  const std::string_view id = report.op->contract().variants[size_t(report.variant)].id;
  if (!report.lock.empty()) {
    const bool known = std::any_of(report.candidates.begin(), report.candidates.end(),
                                   [&](const Candidate& c) { return c.kernel->id == report.lock; });
    return Status(StatusCode::kNoKernel,
                  {.field = std::string(id),
                   .wanted = "the locked kernel '" + report.lock + "'",
                   .got = known ? "a refusal by its own rules" : "no kernel of that id for this operation",
                   .fix = "`layerzero explain` shows the reasons; unlock, or change the call"});
  }
  return Status(StatusCode::kNoKernel, {.field = std::string(id),
                                        .wanted = "a kernel that may run here",
                                        .got = std::to_string(report.candidates.size()) + " kernels, all refused",
                                        .fix = "`layerzero explain` shows every reason"});
}

Result<SelectionReport> Selector::Explain(Request& r) { return Evaluate(r); }

Status Selector::Run(const Plan& plan, Request& r) {
  bool fell_back = false;
  Status status = Dispatch(plan, r, parallel_, &fell_back);  // 8
  if (fell_back) fallbacks_.fetch_add(1, std::memory_order_relaxed);
  return status;
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
