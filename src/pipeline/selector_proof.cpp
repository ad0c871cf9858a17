// Libraries of host kernels during a selection: each is tried before one of its kernels is chosen.
#include <algorithm>

#include "pipeline/selector.h"

namespace lz {
namespace {

Backend* Untried(const KernelEntry* kernel) {
  Backend* const backend = kernel ? kernel->backend : nullptr;
  const bool untried = backend && backend->state.load(std::memory_order_acquire) == Backend::State::kUnproven;
  return untried ? backend : nullptr;
}

// True if the kernel would take the call if its library were usable.
bool LacksItsLibraryAlone(const Candidate& c) {
  return !c.admissible() && std::ranges::all_of(c.reasons, [](const Reason& r) {
    return r.code == ReasonCode::kNotInstalled || r.code == ReasonCode::kBackendImportFailed;
  });
}

bool IsOfOtherPlatform(const Candidate& c) {
  return std::ranges::any_of(c.reasons, [](const Reason& r) { return r.code == ReasonCode::kPlatformMismatch; });
}

}  // namespace

bool Selector::Prove(Backend& backend) {
  if (backend.state.load(std::memory_order_acquire) != Backend::State::kUnproven) return true;
  std::string error;
  const Backend::State state =
      prover_ ? prover_(backend, registry_.Adapters(backend), &error) : Backend::State::kUnproven;
  if (state == Backend::State::kUnproven) return false;
  std::lock_guard lock(proof_mutex_);
  if (backend.state.load(std::memory_order_relaxed) != Backend::State::kUnproven) return true;
  backend.error = std::move(error);
  backend.state.store(state, std::memory_order_release);
  if (state == Backend::State::kFailed) Invalidate(EpochKind::kCapabilities);
  return true;
}

Backend* Selector::Due(const SelectionReport& report, Proofs proofs) const {
  if (context_.device(report.device).simulated) return nullptr;  // it answers for a machine that has the libraries
  if (proofs == Proofs::kAdmissible) {
    for (const Candidate& c : report.candidates) {
      if (Backend* backend = c.admissible() ? Untried(c.kernel) : nullptr) return backend;
    }
  }
  if (!report.plan) return nullptr;
  if (proofs == Proofs::kChosen) return Untried(report.plan->kernel);
  for (const KernelEntry* kernel : {report.plan->kernel, report.plan->fallback, report.plan->reference}) {
    if (Backend* backend = Untried(kernel)) return backend;
  }
  return nullptr;
}

Result<SelectionReport> Selector::EvaluateProven(Request& r, const OperationPolicy& policy, Proofs proofs,
                                                 const TablePart* table) {
  Backends not_now;
  while (true) {
    auto report = Evaluate(r, policy, {.backends = not_now, .table = table, .explains = true});
    Backend* const due = report.ok() ? Due(*report, proofs) : nullptr;
    if (!due) return report;
    if (!Prove(*due)) not_now.push_back(due);
  }
}

// Returns an entry if the winner of `report` is a reference that the user did not choose; nullptr if there is nothing
// better for such a device.
ReferenceUses::Counted* Selector::ReferenceUseOf(const SelectionReport& report) {
  const Device& device = context_.device(report.device);
  bool others = device.platform != Platform::kCpu;
  std::vector<std::string> libraries;
  for (const Candidate& c : report.candidates) {
    const KernelEntry& k = *c.kernel;
    const bool compiled = k.jit.when == Jit::kRecorded || k.jit.when == Jit::kDone;  // a reference too
    if (k.spec.reference || compiled) continue;
    others |= !IsOfOtherPlatform(c);
    if (LacksItsLibraryAlone(c)) libraries.push_back(k.backend ? k.backend->name : k.source);
  }
  return others ? reference_uses_.Note(*report.candidates[size_t(report.winner)].kernel, device.platform, libraries)
                : nullptr;
}

}  // namespace lz
