// The pipeline: request, context, policy, cache, filter, score, plan and dispatch, in the order of the picture in
// ARCHITECTURE.md. Explain runs the same filter and score and keeps their values.
#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "base/reclaimer.h"
#include "base/thread_pool.h"
#include "health/health.h"
#include "pipeline/cache.h"
#include "pipeline/context.h"
#include "pipeline/context_memory.h"
#include "pipeline/dispatch.h"
#include "pipeline/plan.h"
#include "pipeline/score.h"
#include "pipeline/selector_table.h"
#include "policy/store.h"

namespace lz {

// Imports a library's adapters and runs its probe, without any lock of the engine. kUnproven: it cannot be tried now,
// because this thread is in its probe or there is no host language. `error` is set for kFailed.
using Prover =
    std::function<Backend::State(const Backend&, const std::vector<std::string>& adapters, std::string* error)>;

// Libraries of host kernels that a choice or a report may rest on only after they were tried.
enum class Proofs {
  kAdmissible,  // of every kernel that is not refused
  kPlan,        // of the plan's kernels
  kChosen,      // of the chosen kernel
};

// What a selection saw: the values of filter and score, the choice, and why.
struct SelectionReport {
  const Operation* op = nullptr;
  int variant = -1;
  int32_t device = 0;
  std::string lock;  // empty: none
  std::vector<Candidate> candidates;
  int winner = -1;
  const Plan* plan = nullptr;
  uint64_t policy_hash = 0;
  PolicyFacts policy_facts{};
  bool temporary = false;  // depends on temporary facts (memory, a library's probe): not to be cached
  // A kernel that would have been chosen if it were compiled for such calls, and their kind; nullptr: none.
  const KernelEntry* wanted = nullptr;
  JitKind wanted_kind;
  TableUse table = TableUse::kNone;
  std::string table_path;             // of the table in force; empty: none
  OperationTable::Found table_found;  // what it has for the call
};

// The class of a request that the plan cache does not have.
struct Missed {
  Facts key;
  uint64_t hash;
  int32_t generation;  // of the classifier that made the key
};

class Selector {
 public:
  Selector();

  // Stages 1 and 2. Facts are valid afterwards.
  Status Bind(Request& request);
  // Stages 3 to 7 of a prepared request: the cached plan or a new selection.
  Result<const Plan*> Select(Request& request);
  // The same for a call site that one thread owns, after LookupInline found nothing; refills its inline cache. If that
  // is empty afterwards, the choice holds for this call only (cache.enabled: false, or memory was short).
  Result<const Plan*> Select(Request& request, InlineCache& site);
  // Stage 4: the plan of a prepared request in the plan cache; nullptr: it has none, and `missed` is for Select.
  const Plan* Lookup(Request& request, Missed* missed) const {
    const Reclaimer::Guard guard;
    KeepCurrent(request);
    missed->generation = request.facts.v[kSlotGeneration];
    return caches_[request.op->index()]->Find(request.state->classifier, request.facts, &missed->key, &missed->hash);
  }
  // Both caches of a call site, in turn; nullptr: neither has a plan.
  const Plan* Lookup(Request& request, InlineCache& site, Missed* missed) const;
  // A new selection, after Lookup missed.
  Result<const Plan*> Select(Request& request, InlineCache& site, Missed& missed);
  // Stage 8 of a native plan; outputs must be set by BindOutput between Bind and Run. If the plan's workspace would
  // break the policy's headroom, a kernel that fits runs instead. A failure is returned; request.outcome says which.
  Status RunOnce(const Plan& plan, Request& request);
  // The same; if the kernel fails, the next best native ones run.
  Status Run(const Plan& plan, Request& request);
  // A choice for a bound request whose plan's memory could not be allocated: free memory is read again, and no cache
  // keeps the choice.
  Result<const Plan*> SelectWithLess(Request& request);
  // The kernels of one call that have failed, and those failures that wait for another kernel's answer: if all kernels
  // fail, the call is at fault (its data may be wrong).
  struct Failures {
    std::vector<const KernelEntry*> kernels;
    std::vector<Failure> waiting;
  };
  // After plan.kernel has failed with `status`: adds it to `failures` and returns the plan of the best kernel that is
  // not among them; nullptr: none may run. Libraries that were not tried yet are left out. `native`: without kernels of
  // the host language.
  const Plan* Next(const Plan& plan, Request& request, const Status& status, Failures* failures, bool native = false);
  // After a kernel has answered: reports the failures before it.
  void Count(const Failures& failures);

  // Never cached; a request without an admissible kernel is a report without a winner.
  Result<SelectionReport> Explain(Request& request, Proofs proofs = Proofs::kAdmissible);

  // The dispatch table in force; nullptr: none. A change makes every plan stale.
  void SetTable(std::shared_ptr<TableInForce> table);
  std::shared_ptr<TableInForce> table() const;
  // While it is true, selections of this thread ask no table: for making one.
  static void IgnoreTable(bool ignore);

  Registry& registry() { return registry_; }
  Context& context() { return context_; }
  Policies& policies() { return policies_; }
  Epochs& epochs() { return epochs_; }
  const Epochs& epochs() const { return epochs_; }
  Health& health() { return health_; }
  const PlanTable& plans() const { return plans_; }
  CacheStats cache_stats() const;

  void Invalidate(EpochKind kind) { epochs_.Advance(kind); }
  // The layout rules of policy `id`; valid on this thread until its next call.
  const LayoutRules& LayoutRulesOf(int64_t id);
  // Replaces the function that returns free host memory; for tests.
  void set_free_memory(std::function<int64_t()> free) { free_memory_.set_host(std::move(free)); }
  void set_free_gpu_memory(FreeMemory::OfGpu free) { free_memory_.set_gpu(std::move(free)); }
  // `before`: called before each new selection, with its request; may split classes further.
  void set_measurements(MeasurementSource source, std::function<void(const BoundCall&)> before = {}) {
    measurements_ = std::move(source);
    before_selecting_ = std::move(before);
  }
  void set_prover(Prover prover) { prover_ = std::move(prover); }
  // Tries the library if that has not been done. Returns false if it cannot be tried now.
  bool Prove(Backend& backend);
  void set_parallel(const lz_parallel& parallel) { parallel_ = parallel; }
  const lz_parallel& parallel() const { return parallel_; }
  void CountFallback() { fallbacks_.fetch_add(1, std::memory_order_relaxed); }
  // Selections that no cache served.
  uint64_t num_selections() const { return selections_.load(std::memory_order_relaxed); }
  uint64_t num_fallbacks() const { return fallbacks_.load(std::memory_order_relaxed); }
  const ReferenceUses& reference_uses() const { return reference_uses_; }

 private:
  Result<const Plan*> SelectProven(Request& request, Missed& missed, bool* keep);
  using Backends = std::vector<const Backend*>;
  Result<const Plan*> SelectNew(Request& request, Missed& missed, const Backends& not_now, bool* keep, Backend** due);
  Result<const Plan*> Choice(Result<SelectionReport>& report);  // its plan, or the reason why there is none
  // The table's part for the operation of a call; see TableInForce.
  struct TablePart {
    std::shared_ptr<TableInForce> table;
    std::shared_ptr<const OperationTable> part;
  };
  TablePart TableFor(const BoundCall& call);
  const KernelEntry* FromTable(const Request& request, const OperationPolicy& policy, const TablePart& table,
                               SelectionReport* report) const;
  // Kernels that are out for one evaluation, and what decides it.
  struct Without {
    std::span<const Backend* const> backends;
    std::span<const KernelEntry* const> failed;
    bool least_memory = false;  // the smallest workspace wins: memory is short
    bool host_kernels = false;
    bool may_compile = false;          // nothing else serves the call
    const TablePart* table = nullptr;  // nullptr: no table is asked
    bool explains = false;             // all candidates are scored, whatever the table says
  };
  void FilterAll(Request& request, const OperationPolicy& policy, const Without& without, const KernelEntry* only,
                 SelectionReport* report);
  void Choose(Request& request, const Policy& policy, const Without& without, int of_table, SelectionReport* report);
  Result<SelectionReport> Evaluate(Request& request, const OperationPolicy& policy, const Without& without);
  void FilterByHealth(Request& request, const OperationPolicy& policy, const Without& without,
                      std::vector<Candidate>* candidates);
  int Best(Request& request, const Policy& policy, const Without& without, std::vector<Candidate>* candidates);
  const KernelEntry* WantedIfCompiled(Request& request, const Policy& policy, const Without& without,
                                      const SelectionReport& report);
  std::vector<const Backend*> UntriedBackends(const Request& request) const;
  Status LostDevice(const Request& request);
  Result<SelectionReport> EvaluateProven(Request& request, const OperationPolicy& policy, Proofs proofs,
                                         const TablePart* table = nullptr);
  Backend* Due(const SelectionReport& report, Proofs proofs) const;
  bool ApplyHeadroom(Request& request, const Policy& policy, std::vector<Candidate>* candidates) const;
  static Status MayTake(void* self, const Request& request, uint64_t bytes);
  const Plan* MakePlan(const SelectionReport& report, const Policy& policy);
  ReferenceUses::Counted* ReferenceUseOf(const SelectionReport& report);
  Status NoKernel(const SelectionReport& report);
  Result<const Plan*> SelectInCapture(Request& request);
  std::string UnsafeBecause(const Candidate& candidate);
  // The kernels that only the capture excludes, each with its reason; for a locked call the locked one.
  std::string UnsafeInGraphs(const SelectionReport& report);
  static const Candidate* Reference(const SelectionReport& report);

  Registry registry_;
  Context context_;
  Epochs epochs_;
  Policies policies_{registry_};
  std::vector<std::unique_ptr<PlanCache>> caches_;  // by operation index
  SingleFlight flights_;
  ReferenceUses reference_uses_;
  PlanTable plans_;
  Health health_{registry_, [this](int32_t device) -> const Device& { return context_.device(device); },
                 [this] { Invalidate(EpochKind::kCapabilities); }};
  mutable std::mutex table_mutex_;
  std::shared_ptr<TableInForce> table_;
  Prover prover_;
  std::mutex proof_mutex_;
  MeasurementSource measurements_;
  std::function<void(const BoundCall&)> before_selecting_;
  mutable FreeMemory free_memory_;
  lz_parallel parallel_ = ThreadPool::ProcessParallel();
  std::atomic<uint64_t> fallbacks_{0}, selections_{0};
};

}  // namespace lz
