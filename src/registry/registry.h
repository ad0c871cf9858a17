// Everything that is installed: operations and kernels, with their rules resolved against the operation's fields.
// Registration is rare and serialised; readers take an operation's state with one acquire load.
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/kernel.h"
#include "core/status.h"
#include "registry/classifier.h"
#include "registry/expression.h"
#include "registry/operation.h"

namespace lz {

struct RowExtras;

// Whether a kernel can run in this process, and if not, why.
struct Availability {
  bool installed = true;
  ReasonCode code = ReasonCode::kNotInstalled;
  std::string detail;  // "No module named 'flash_attn'", kept with the reason
  // Of the library that runs it ("2.13.0+cpu"), as measured records name it; empty: this build's own code.
  std::string version;
};

// The library of a descriptor's rows. They are candidates after it was seen to import and to pass its probe, which is
// tried once, when a call would take one of them (Selector::Prove).
struct Backend {
  enum class State : uint8_t { kUnproven, kProven, kFailed };
  std::string name;
  std::string probe;                           // "module:function", which raises where the library is broken; or empty
  std::string error;                           // of kFailed; written before the state
  std::atomic<State> state{State::kUnproven};  // changes once
};

// Why a backend that is not proven is refused.
std::string ProofText(const Backend& backend);

// A registered kernel. Immutable, lives as long as the process.
struct KernelEntry {
  KernelSpec spec;
  std::string id, operation, source;  // spec's views point here
  const Operation* op = nullptr;
  uint16_t variant = 0;
  uint32_t index = 0;  // among all kernels of the process
  std::vector<Row> rows;
  Availability availability;
  std::string adapter;         // host kernels: what the door resolves
  Backend* backend = nullptr;  // whose proof the row needs; nullptr: none
  std::string descriptor;      // SHA-256 of the descriptor that the row is of; empty: the build's own
  std::string origin;          // "builtin", "entry_point", "hub", "function", "plugin"
  std::vector<std::string> notes;
  double transform_cost_hint = 0;             // further points of the score where tensors are converted
  std::optional<Expression> workspace_bytes;  // of host kernels; of others spec.workspace
  bool removed = false;                       // the registry's own, under its mutex
};

// Published whole for each operation. A replaced one is freed when no reader is left: it is read inside a
// Reclaimer::Guard alone, and a request keeps it only as long as its facts are of this generation.
struct OperationState {
  explicit OperationState(const Operation& op, int32_t generation) : classifier(op, generation) {}
  Classifier classifier;
  std::vector<Predicate> predicates;
  std::vector<std::vector<Row>> variant_conditions;
  std::vector<std::vector<const KernelEntry*>> kernels;  // by variant, in order of registration
};

class Registry {
 public:
  using Libraries = std::map<std::string, std::string, std::less<>>;
  // Compiles the generated tables. `libraries`: the path of each C library that the user named, by source.
  explicit Registry(Libraries libraries = {});

  // By flat name, operation id or deprecated alias; nullptr when unknown.
  const Operation* Find(std::string_view name) const;
  // The variant of an operation id within its contract, or -1 (a flat name, an alias).
  static int VariantIndex(const Operation& op, std::string_view id);
  const std::vector<std::unique_ptr<Operation>>& operations() const { return operations_; }
  // A library that was named and that no kernel calls is a mistake of who named it.
  Status CheckLibraries() const;
  const Status& startup() const { return startup_; }  // the first mistake in a built-in table

  struct Registration {
    const KernelSpec* spec;
    Availability availability;
    std::string adapter;
    Backend* backend = nullptr;
    const RowExtras* extras = nullptr;  // nullptr: a row of this build
  };
  // A library for rows to name; it lives as long as the registry.
  Backend& AddBackend(std::string name, std::string probe);
  // Those of this name with kernels.
  std::vector<Backend*> Backends(std::string_view name);
  // The adapters of the backend's rows whose own requirements are installed, each once, in alphabetical order.
  std::vector<std::string> Adapters(const Backend& backend) const;
  // All or nothing. An id that is taken in its operation, an unknown operation or field is refused.
  Status Register(std::span<const Registration> kernels);
  // Takes every kernel of this adapter out: no later selection finds it, its ids are free again. Entries stay, because
  // plans hold them. Gives how many there were.
  size_t Remove(std::string_view adapter);
  // Conditions that a policy states become classes too, for ever. Gives them resolved; an unknown field is refused.
  Result<std::vector<Row>> Watch(const Operation& op, std::span<const Constraint> conditions);
  // Conditions that measured records need, in place of those of the records before: of the operations that are not
  // named, none. All or nothing.
  using Watches = std::map<const Operation*, std::vector<Constraint>>;
  Status WatchMeasured(const Watches& watches);

  // Resolves a rule of `op`; may add a predicate to `predicates`.
  static Result<Row> Resolve(const Operation& op, const Constraint& constraint, std::vector<Predicate>* predicates);

  const KernelEntry* FindKernel(std::string_view operation_or_name, std::string_view id) const;
  std::vector<const KernelEntry*> Kernels(const Operation* op) const;  // nullptr: of all
  size_t num_kernels() const;
  // SHA-256 of everything that decides which kernels there are: rows of the build and of descriptors, what is installed
  // and in which version. The same set gives the same hash, whatever the order of registration.
  std::string CapabilitiesHash() const;
  uint64_t num_changes() const;  // of the set of kernels
  const KernelEntry* kernel(uint32_t index) const;

 private:
  struct Building {  // the mutable side of one operation; guarded by mutex_
    std::vector<Predicate> predicates;
    std::vector<std::vector<Row>> variant_conditions;
    std::vector<std::vector<const KernelEntry*>> kernels;
    std::vector<Row> watched;   // by policies
    std::vector<Row> measured;  // by measured records
    std::unique_ptr<const OperationState> state;
  };
  Result<std::vector<Row>> ResolveAll(const Operation& op, std::span<const Constraint> conditions,
                                      std::vector<Predicate>* predicates) const;
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
  Status startup_;
  const Libraries libraries_;
};

// The reason code that (field, relation) stands for when a row names none.
ReasonCode DefaultCode(const Operation& op, std::string_view field_name, Rel rel);

}  // namespace lz
