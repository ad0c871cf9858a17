// Selection after failures: what health refuses, and the next kernel of a call whose kernel has failed.
#include <algorithm>

#include "pipeline/filter_health.h"
#include "pipeline/selector.h"
#include "pipeline/selector_captures.h"

namespace lz {

Status Selector::LostDevice(const Request& r) {
  const std::string why = health_.LostBecause(r.device);
  if (why.empty()) return {};
  return Status(StatusCode::kContextLost,
                {.field = std::string(r.op->name()),
                 .wanted = "a device that works",
                 .got = "one that was lost by " + why,
                 .fix = "start the process again: nothing in it can use the device any more"});
}

// With hold_numerics a kernel that replaces one which health refuses is of the same class, or there is none.
void Selector::FilterByHealth(Request& r, const OperationPolicy& policy, const Without& without,
                              std::vector<Candidate>* candidates) {
  const Policy& p = *policy.policy;
  std::vector<Candidate> healthy = p.hold_numerics ? *candidates : std::vector<Candidate>();
  const int wanted = p.hold_numerics ? Best(r, p, {}, &healthy) : -1;
  ApplyHealth(r, context_.device(r.device), policy, health_, without.failed, candidates);
  if (without.host_kernels) {
    for (Candidate& c : *candidates) {
      if (c.kernel->spec.call == CallKind::kHost) {
        c.reasons.push_back({ReasonCode::kBackendImportFailed, Rel::kEq, kNoField, kNoRow, 0, 0});
      }
    }
  }
  if (wanted < 0 || (*candidates)[size_t(wanted)].admissible()) return;
  const NumericsClass held = healthy[size_t(wanted)].kernel->spec.numerics;
  for (Candidate& c : *candidates) {
    if (c.kernel->spec.numerics == held) continue;
    c.reasons.push_back({ReasonCode::kPolicyDenied, Rel::kEq, kNoField, kNoRow, 0, 0});
  }
}

int Selector::Best(Request& r, const Policy& policy, const Without& without, std::vector<Candidate>* candidates) {
  const int best = Score(*candidates, r, policy, policy.perfdb_enabled ? measurements_ : MeasurementSource());
  if (!without.least_memory || best < 0) return best;
  int least = best;
  uint64_t least_bytes = UINT64_MAX;
  for (size_t i = 0; i < candidates->size(); ++i) {
    const Candidate& c = (*candidates)[i];
    const bool last = c.kernel->spec.reference && !(*candidates)[size_t(best)].kernel->spec.reference;
    if (!c.admissible() || last) continue;
    const uint64_t bytes = WorkspaceBytes(c, r);
    const bool better = bytes < least_bytes || (bytes == least_bytes && int(i) == best);
    if (better) least = int(i), least_bytes = bytes;
  }
  return least;
}

// Backends of candidates that were never tried: importing one while a call fails would not help it.
std::vector<const Backend*> Selector::UntriedBackends(const Request& r) const {
  std::vector<const Backend*> backends;
  for (const auto& kernels : r.state->kernels) {
    for (const KernelEntry* k : kernels) {
      const bool untried = k->backend && k->backend->state.load(std::memory_order_acquire) == Backend::State::kUnproven;
      if (untried) backends.push_back(k->backend);
    }
  }
  return backends;
}

const Plan* Selector::Next(const Plan& plan, Request& r, const Status& status, Failures* failures, bool native) {
  if (r.outcome == Outcome::kDone) return nullptr;  // an error of the call, not of the kernel
  const Reclaimer::Guard guard;
  KeepCurrent(r);
  const bool capturing = (r.flags & LZ_FLAG_CAPTURING) != 0;
  Failure failure{*plan.kernel, r.device, r.outcome, status.Text(), ClassOf(r), capturing};
  // A wrong result was compared, and no other kernel runs after a write or on a lost device.
  const bool waits =
      r.outcome != Outcome::kWrong && r.outcome != Outcome::kFailedAfterWrite && r.outcome != Outcome::kContextLost;
  if (!waits) health_.Report(failure);
  if (waits) failures->waiting.push_back(std::move(failure));
  if (r.outcome != Outcome::kRefused) plan.Watch(true);
  const bool may = MayFallBack(plan, r);
  const bool no_memory = r.outcome == Outcome::kOutOfMemory;
  r.outcome = Outcome::kDone;
  failures->kernels.push_back(plan.kernel);
  if (r.capture != 0) CaptureChoices::Get().Forget(r, *plan.kernel);
  if (!may) return nullptr;
  if (no_memory) free_memory_.Forget();
  auto policy = policies_.For(r.policy, *r.op);
  if (!policy.ok()) return nullptr;
  RefreshFacts(r);
  const auto untried = UntriedBackends(r);
  auto report =
      Evaluate(r, **policy,
               {.backends = untried, .failed = failures->kernels, .least_memory = no_memory, .host_kernels = native});
  if (!report.ok() || !report->plan) return nullptr;
  r.fell_back = true;
  CountFallback();
  return report->plan;
}

void Selector::Count(const Failures& failures) {
  for (const Failure& failure : failures.waiting) health_.Report(failure);
}

Status Selector::Run(const Plan& plan, Request& r) {
  r.fell_back = false;
  Status first = RunOnce(plan, r);
  if (first.ok()) [[likely]]
    return first;
  Failures failures;
  const Plan* next = Next(plan, r, first, &failures, true);
  while (next) {
    Status status = RunOnce(*next, r);
    if (status.ok()) {
      Count(failures);
      return {};
    }
    next = Next(*next, r, status, &failures, true);
    first = FirstOrLast(std::move(first), std::move(status));
  }
  return first;
}

}  // namespace lz
