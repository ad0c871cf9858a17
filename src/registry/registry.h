// Everything that is installed: operations and kernels, with their rules resolved against the operation's fields.
// Registration is rare and serialized; readers load an operation's state with one acquire load.
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/kernel.h"
#include "core/status.h"
#include "registry/classifier.h"
#include "registry/descriptor.h"
#include "registry/expression.h"
#include "registry/operation.h"

namespace lz {

// Availability of a kernel in this process, with the reason if it cannot run.
struct Availability {
  bool installed = true;
  ReasonCode code = ReasonCode::kNotInstalled;
  std::string detail;  // "No module named 'flash_attn'", kept with the reason
  // Version of the library that runs it ("2.13.0+cpu"), as measurements name it; empty: code of this build.
  std::string version;
};

// The library of a descriptor's rows. Its kernels become candidates after its import and probe succeeded, which are
// tried once, when a call would select one of them (Selector::Prove).
struct Backend {
  enum class State : uint8_t { kUnproven, kProven, kFailed };
  std::string name;
  std::string probe;                           // "module:function", which raises if the library is broken; or empty
  std::string error;                           // for kFailed; written before the state
  std::atomic<State> state{State::kUnproven};  // changes once
};

// Why a backend that is not proven is refused.
std::string ProofText(const Backend& backend);

// A Preference with its conditions resolved.
struct ResolvedPreference {
  std::vector<Row> when;
  int32_t priority;
};

// A JitKey with its rows resolved. A kind of calls is the values of `fields` and whether each of `conditions` holds.
struct ResolvedJit {
  Jit when = Jit::kNone;
  std::vector<Row> fields, conditions;
  std::vector<Row> never;  // where these do not hold nothing is compiled, whatever the policy says: in captures
};
using JitKind = std::vector<int64_t>;

// A registered kernel. Immutable; valid for the life of the process.
struct KernelEntry {
  KernelSpec spec;
  std::string id, operation, source;  // spec's views refer to these
  const Operation* op = nullptr;
  uint16_t variant = 0;
  uint32_t index = 0;  // index among all kernels of the process
  std::vector<Row> rows;
  std::vector<ResolvedPreference> preferences;
  Availability availability;
  std::string adapter;         // host kernels: the name that the binding resolves
  Backend* backend = nullptr;  // the backend whose proof the row needs; nullptr: none
  std::string descriptor;      // SHA-256 of the row's descriptor; empty: part of the build
  std::string origin;          // "builtin", "entry_point", "hub", "function", "plugin"
  std::vector<std::string> notes;
  double transform_cost_hint = 0;             // additional points of the score if tensors are converted
  std::optional<Expression> workspace_bytes;  // for host kernels; native ones have spec.workspace
  bool removed = false;                       // used by the registry only, under its mutex
  ResolvedJit jit;
};

// Published as a whole for each operation. A replaced state is freed when no reader is left: it may be read only inside
// a Reclaimer::Guard, and a request keeps it only while its facts have this generation.
struct OperationState {
  explicit OperationState(const Operation& op, int32_t generation) : classifier(op, generation) {}
  Classifier classifier;
  std::vector<Predicate> predicates;
  std::vector<std::vector<Row>> variant_conditions;
  std::vector<std::vector<const KernelEntry*>> kernels;  // by variant, in order of registration
  std::map<const KernelEntry*, std::set<JitKind>> jit_ready;
};

class Registry {
 public:
  using Libraries = std::map<std::string, std::string, std::less<>>;
  // Compiles the generated tables. `libraries`: the path of each C library that the user named, by source.
  explicit Registry(Libraries libraries = {});

  // Finds by flat name, operation id or deprecated alias; nullptr if unknown.
  const Operation* Find(std::string_view name) const;
  // The variant of an operation id within its contract, or -1 (a flat name, an alias).
  static int VariantIndex(const Operation& op, std::string_view id);
  const std::vector<std::unique_ptr<Operation>>& operations() const { return operations_; }
  // The error if the user named a library that no kernel calls.
  Status CheckLibraries() const;
  const Status& startup() const { return startup_; }  // the first mistake in a built-in table

  struct Registration {
    const KernelSpec* spec;
    Availability availability;
    std::string adapter;
    Backend* backend = nullptr;
    const RowExtras* extras = nullptr;  // nullptr: a row of this build
  };
  // Adds a library for rows to refer to; valid as long as the registry.
  Backend& AddBackend(std::string name, std::string probe);
  // The backends of this name that have kernels.
  std::vector<Backend*> Backends(std::string_view name);
  // The adapters of the backend's rows whose own requirements are installed, without duplicates, in alphabetical order.
  std::vector<std::string> Adapters(const Backend& backend) const;
  // Registers all or nothing. Refuses an id that its operation has already, an unknown operation or field.
  Status Register(std::span<const Registration> kernels);
  // Removes every kernel of this adapter: no later selection finds it, and its ids are free again. Entries stay,
  // because plans hold them. Returns how many there were.
  size_t Remove(std::string_view adapter);
  // Adds conditions to the classes for as long as somebody holds the result, which is the resolved conditions. Refuses
  // an unknown field. The result must not outlive the registry.
  using Thresholds = std::shared_ptr<const std::vector<Row>>;
  Result<Thresholds> AddThresholds(const Operation& op, std::span<const Constraint> conditions);
  // Replaces the conditions of the previous measurements by those that the present ones need; an operation that is not
  // named has none. All or nothing.
  using MeasuredConditions = std::map<const Operation*, std::vector<Constraint>>;
  Status ReplaceMeasured(const MeasuredConditions& conditions);

  // Says that a kernel of Jit::kFirstCall is ready for a kind of calls, or that it never will be; calls of this kind
  // and of others are different classes from then on.
  void SetJit(const KernelEntry& kernel, const JitKind& kind, bool ready);

  // Resolves a rule of `op`; may add a predicate to `predicates`.
  static Result<Row> Resolve(const Operation& op, const Constraint& constraint, std::vector<Predicate>* predicates);

  const KernelEntry* FindKernel(std::string_view operation_or_name, std::string_view id) const;
  std::vector<const KernelEntry*> Kernels(const Operation* op) const;  // nullptr: those of all operations
  size_t num_kernels() const;
  // SHA-256 of everything that decides which kernels exist: rows of the build and of descriptors, what is installed and
  // in which version. Equal sets have equal hashes, whatever the order of registration.
  std::string CapabilitiesHash() const;  // computed once after each change
  uint64_t num_changes() const;          // changes of the set of kernels
  const KernelEntry* kernel(uint32_t index) const;
  bool IsRemoved(const KernelEntry& kernel) const;

  // Around a fork: no other thread is changing the tables meanwhile, so that the child has all of them and finds
  // their lock open.
  void BeforeFork() { mutex_.lock(); }
  void AfterFork() { mutex_.unlock(); }

 private:
  // A condition that AddThresholds added. Those without a holder stay until the next state, so that a policy which
  // comes and goes does not replace the classes each time, unless there are more than kMaxIdleRows.
  struct HeldRow {
    Row row;
    int holders;
  };
  static constexpr size_t kMaxIdleRows = 32;
  struct Building {  // the mutable side of one operation; guarded by mutex_
    std::vector<Predicate> predicates;
    std::vector<std::vector<Row>> variant_conditions;
    std::vector<std::vector<const KernelEntry*>> kernels;
    std::vector<HeldRow> held;  // from policies
    std::vector<Row> measured;  // from measurements
    std::vector<Row> jit;       // of kinds of calls that SetJit was called with
    std::map<const KernelEntry*, std::set<JitKind>> jit_ready;
    std::unique_ptr<const OperationState> state;
  };
  static bool IsIdle(const HeldRow& held) { return held.holders == 0; }
  void Release(const Operation& op, const std::vector<Row>& rows);
  // The predicates of an operation; those that no row refers to are free.
  static std::vector<Predicate> LivePredicates(const Building& building);
  template <class Each>
  static void ForEachRow(const Building& building, Each&& each);
  static Result<Row> ResolvePredicate(const Operation& op, const Constraint& c, Row row,
                                      std::vector<Predicate>* predicates);
  static Result<std::vector<Row>> ResolveAll(const Operation& op, std::span<const Constraint> conditions,
                                             std::vector<Predicate>* predicates);
  static Status ResolvePreferences(const KernelSpec& spec, KernelEntry* entry, std::vector<Predicate>* predicates);
  static Status ResolveJit(const JitKey& key, KernelEntry* entry, std::vector<Predicate>* predicates);
  Status Prepare(const Registration& registration, KernelEntry* entry, std::vector<Predicate>* predicates);
  void PublishState(const Operation& op);

  std::vector<std::unique_ptr<Operation>> operations_;
  std::map<std::string, const Operation*, std::less<>> by_name_;
  mutable std::mutex mutex_;
  std::vector<Building> building_;  // by operation index
  std::deque<Backend> backends_;
  std::deque<KernelEntry> entries_;  // stable addresses
  int32_t generation_ = 0;
  uint64_t changes_ = 0;
  mutable std::string capabilities_;  // hash as of capabilities_at_
  mutable uint64_t capabilities_at_ = UINT64_MAX;
  Status startup_;
  const Libraries libraries_;
};

// The reason code of (field, relation) if a row names none.
ReasonCode DefaultCode(const Operation& op, std::string_view field_name, Rel rel);

}  // namespace lz
