// The engine as the bindings see it: one object per process. Our own libraries (CPython binding, torch operators) use
// it directly, after comparing build ids; all other callers use the C ABI over it.
//
//   Engine& engine = Engine::Get();
//   Request r(*engine.Find("rms_norm"));  ... fill tensors and scalars ...
//   LZ_RETURN_IF_ERROR(engine.Bind(r));
//   auto plan = engine.Select(r);
//   BindOutput(r, 0, memory);
//   LZ_RETURN_IF_ERROR(engine.Run(**plan, r));
//
// engine/call.h has all of a call.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/export.h"
#include "base/ticker.h"
#include "engine/measured.h"
#include "perfdb/prior.h"
#include "perfdb/writer.h"
#include "pipeline/dispatch_observer.h"
#include "pipeline/selector.h"

namespace lz {

// A tensor that is lent to the host language, which may keep it as long as it holds the owner.
struct HostTensor {
  lz_tensor view{.ndim = -1};  // in the caller's layout
  void* owner = nullptr;       // one reference, which the host takes over
  void (*release)(void* owner) = nullptr;
};

// Notices about calls, which the result does not contain. Called from any thread. Runs of kernels are observed by
// pipeline/dispatch_observer.h.
struct RunListener {
  void (*selected)(const Plan& plan, const Request& request);  // the inline cache of the call site did not hold it
  // The kernel of `plan` failed with `why`, that of `answered` has answered.
  void (*fell_back)(const Plan& plan, const Plan& answered, const Request& request, const Status& why);
  // Steps of programs: whether a profiler of this thread wants an event for each, and the event. nullptr: no profiler.
  bool (*profiled)() = nullptr;
  void* (*began)(const KernelEntry& kernel) = nullptr;
  void (*ended)(void* event) = nullptr;
};

// What the CPython binding does for the engine and our other libraries. Called from any thread, with or without
// the GIL.
struct HostRuntime {
  // Runs a kernel that lives in the host language. `tensors`: the inputs, then the outputs that the results are copied
  // into (each with an owner where it is given).
  Status (*call)(const KernelEntry& kernel, const Request& request, const Transforms& transforms, HostTensor* tensors);
  // Adds policy scope and flags of the calling context to an unprepared request.
  Status (*context)(Request& request);
  // Warns about a guessed layout. Returns an error if the user has turned the warning into one.
  Status (*guessed)(const Request& request);
  const RunListener* listener = nullptr;  // nullptr: no notices
  // As Prover: imports the adapters and runs the probe. nullptr: no library of the host language is usable.
  Backend::State (*prove)(const Backend& backend, const std::vector<std::string>& adapters,
                          std::string* error) = nullptr;
  // Called before a selection until it returns true: registers the descriptors that can only be found by an import.
  bool (*begin)() = nullptr;
  // Bytes that one allocation on a CUDA device can have; -1: unknown.
  int64_t (*free_gpu_memory)(int32_t ordinal) = nullptr;
};

class LZ_OWN Engine {
 public:
  // Reads the process's policy on the first call; startup() has the mistakes in it.
  static Engine& Get();
  static const char* BuildId();
  static const char* Version();
  Status startup() const;  // mistakes at start-up that are not corrected yet

  // ---- calls (any thread)
  const Operation* Find(std::string_view name) const;
  const std::vector<std::unique_ptr<Operation>>& operations() const { return selector_.registry().operations(); }
  Status Bind(Request& request);
  // Stages 3 to 7 of a prepared request; with `site`, after Lookup found nothing in it. See Selector.
  Result<const Plan*> Select(Request& request);
  Result<const Plan*> Select(Request& request, InlineCache& site);
  const Plan* Lookup(const InlineCache& site, const Facts& facts) const;  // nullptr: not in this inline cache
  // How often the reference of a plan with uses_fallback() ran, and which libraries are missing.
  ReferenceUse ReferenceUseOf(const Plan& plan) const;
  Status Run(const Plan& plan, Request& request);      // a native plan. request.fell_back: another kernel ran
  Status RunOnce(const Plan& plan, Request& request);  // the same: its kernel alone
  // After a kernel has failed: the plan of the next best one, or nullptr; after one has answered: Count. See Selector.
  const Plan* Next(const Plan& plan, Request& request, const Status& status, Selector::Failures* failures);
  void Count(const Selector::Failures& failures);
  // Calls a host kernel; see HostRuntime::call. kNotInstalled: the process has no host language.
  Status CallHost(const KernelEntry& kernel, const Transforms& transforms, const Request& request, HostTensor* tensors);
  // The warning for a bound request whose layout was guessed, and the seconds between two warnings at one place.
  static std::string LayoutWarning(const Request& request);
  double LayoutWarnInterval(const Request& request);

  // ---- policy
  Status LoadConfig(const std::string& path);  // replaces the project file's layer
  Status Configure(const std::string& json);
  Result<int64_t> PolicyScope(int64_t parent, std::string json);
  bool LogsSelections(int64_t id);
  std::shared_ptr<const Policy> PolicyInForce();  // the process's; nullptr: it could not be read
  // Called when the host has registered every library except those of `later`, which follow at the first selection:
  // see Policies.
  void AllNamed(std::vector<std::string> later);
  // The scope of a call that names its kernel; an unknown kernel id of `op` is refused and changes nothing.
  Result<int64_t> KernelScope(int64_t parent, const Operation& op, std::string_view kernel);
  Result<std::string> PolicyText(int64_t id = 0);  // JSON: every key, value, origin

  // ---- registration. `availability`: JSON {kernel id or "*": {"installed": bool, "code": ..., "detail": ...}}.
  Status RegisterBackend(std::string_view descriptor, std::string_view availability);
  size_t Unregister(std::string_view adapter);  // the number of kernels that the adapter had
  // Tries the library of this name if that has not been done. Returns why its kernels cannot be used; empty: they can,
  // or there are none.
  std::string ProveBackend(std::string_view name);
  // A kernel that is compiled at its first call of a kind (registry/descriptor.h): see Registry::SetJit.
  Status SetJit(std::string_view operation, std::string_view kernel, const JitKind& kind, bool ready);
  // A bound call as JSON, as the caller made it: operation, device, layout, scalars, tensors (dtype, shape, strides).
  std::string CallText(const Request& request) const;
  // A plugin's kernels are run on the cases of their operations before any call may select them. Without a verifier
  // (set by verify, since the engine does not know cases) they are registered untested.
  Status LoadPlugin(const std::string& library, const std::string& descriptor);
  using Verifier = Status (*)(Selector& selector, const KernelEntry& kernel);
  static void SetVerifier(Verifier verifier);
  // Shadow checks (set by verify) of calls whose policy has a health.shadow_rate; `delta`: 1 turns them on, -1 off.
  // They are on too while the process's policy has a rate.
  using ShadowMaker = std::shared_ptr<Observer> (*)(Selector& selector);
  static void SetShadow(ShadowMaker make);
  void Shadow(int delta);
  bool is_shadowed() const { return shadowed_.load(std::memory_order_relaxed); }

  // ---- measured times (perfdb/prior.h). At the first selection for a device: those of the performance database, those
  // of `prior.records.json` in the policy's cache_dir, then those that the library carries.
  Status UsePrior(std::string_view records, std::string_view what);  // these alone from here on
  Status UsePriorOfMachine();                                        // those of the first selections, read again
  std::string DeviceId(std::string_view device);                     // as records name it; empty: no such device
  // The performance database (engine/perfdb.cpp): one command of `layerzero perfdb` and its arguments, both ways JSON.
  // May wait for locks of other processes.
  Result<std::string> Perfdb(std::string_view command, std::string_view arguments);
  std::string MeasuredCalls() const;  // JSON: [{"operation", "us": {kernel id: median}}] of the records in force

  // ---- dispatch tables (engine/table.cpp): one command and its arguments, both ways JSON; "build" returns bytes
  Result<std::string> Table(std::string_view command, std::string_view arguments);

  // ---- inspection, all JSON; bound requests are not needed for lists
  Result<std::string> Explain(Request& request, std::string_view device = {}, Proofs proofs = Proofs::kAdmissible);
  // The same text of a selection that was made; the request's outputs have shapes (an Observer gets both).
  std::string SelectionText(const Request& request, const SelectionReport& report);
  std::string Contracts() const;
  // Rows of `op`, or of all operations; their constraints are nine tenths of the text.
  std::string Kernels(const Operation* op, bool constraints) const;
  std::string FunctionsOf(std::string_view kernel_id) const;  // flat names of the operations that a kernel serves
  std::string Devices();
  // The kernels that serve each operation and dtype on a device of this machine or a simulated one (coverage.cpp).
  std::string HealthText();  // JSON: see Health::ToJson
  // Closes the breakers of kernels that match a glob (empty: all) and removes what this machine has learned about
  // them. Returns how many.
  Result<size_t> ResetHealth(const std::string& kernel);
  // What a proof of a kernel's safety in CUDA graphs found for the class of this call: "graph_safe", or the name of
  // an outcome. See Health::SetGraphVerdict.
  Status SetGraphVerdict(Request& request, std::string_view kernel, std::string_view outcome,
                         const std::string& detail);
  Result<std::string> Coverage(std::string_view device);
  static std::string DescriptorFacts();  // name, use and effect of each (registry/fact_table.h)
  std::string Stats() const;
  static std::string ReasonCodes();

  void Invalidate() { selector_.Invalidate(EpochKind::kCapabilities); }
  void SetHost(const HostRuntime* host) {
    host_.store(host, std::memory_order_release);
  }                                                                                  // lives as long as the process
  const HostRuntime* host() const { return host_.load(std::memory_order_acquire); }  // nullptr: none
  void SetParallel(const lz_parallel& parallel) { selector_.set_parallel(parallel); }
  const Epochs& epochs() const { return selector_.epochs(); }
  Selector& selector() { return selector_; }

 private:
  Engine();
  using RecordGroups = std::vector<std::vector<perfdb::Record>>;
  using Priors = std::map<int32_t, std::shared_ptr<const perfdb::Prior>>;  // by index of the device
  RecordGroups RecordsFor(const Device& device, Status* problem) const;
  void ReadPrior(int32_t device);  // at the first selection for it
  MeasuredRecords::Paths RecordPaths() const;
  void ForgetMovedRecords();  // if the policy names other files than those that were read: the next selection reads
  std::string PerfdbState() const;
  Result<std::string> Queue(const std::string& document, const std::string& path);
  std::vector<perfdb::Record> RecordsOfDatabase(const Device& device) const;
  void AfterFork();
  std::shared_ptr<const perfdb::Prior> MakePrior(const Device& device, const Priors& known, Status* problem) const;
  Status PutInForce(Priors priors);
  Status ReadPriorsAgain();  // of the devices that have been selected for, and of the CPU; under prior_change_mutex_
  std::shared_ptr<const perfdb::Prior> PriorInForce(int32_t device) const;  // nullptr: before its first selection
  size_t NumRecordsInForce() const;
  std::optional<Measurement> Measured(const KernelEntry& kernel, const BoundCall& call) const;
  void BeforeSelecting(const BoundCall& call);
  Status LoadTable(const std::string& path, const std::string& numerics, bool tp_invariant);
  void LoadPolicyTable();  // that of the policy, at the first selection: all libraries are registered then
  void PolicyTableChanged(const std::string& path);
  std::string TableState();
  void PolicyChanged();  // applies device maps and time to live, which are not rules; advances the epoch

  mutable Selector selector_;
  mutable std::mutex startup_mutex_;  // startup_ changes at most once: load_config clears it
  Status startup_;
  bool startup_is_policy_ = false;   // the error is in a file or variable of the policy
  std::atomic<bool> failed_{false};  // startup_ holds an error
  std::mutex shadow_mutex_;
  int shadows_ = 0;
  bool shadow_of_policy_ = false;
  std::shared_ptr<Observer> shadow_;  // registered while shadows_ > 0
  std::atomic<bool> shadowed_{false};
  Ticker time_to_live_;
  double ttl_seconds_ = 0;
  std::mutex policy_mutex_;
  std::atomic<const HostRuntime*> host_{nullptr};
  std::atomic<bool> host_began_{false};
  std::array<std::atomic<bool>, 256> prior_read_ = {};          // by device, as Context has them
  std::mutex prior_change_mutex_;                               // one change at a time; taken before prior_mutex_
  std::optional<RecordGroups> given_records_;                   // nullopt: the machine's
  std::atomic<MeasuredRecords*> machine_{new MeasuredRecords};  // replaced in a forked child, never deleted
  std::atomic<perfdb::Writer*> writer_{nullptr};                // likewise; made by the first record
  mutable std::mutex prior_mutex_;
  Priors priors_;
  std::string prior_problem_;  // problem with the machine's files
  std::mutex table_mutex_;
  std::string policy_table_, table_problem_;  // the policy's path; why its table is not in force
  std::atomic<bool> table_pending_{false};    // it was not loaded yet
  std::string cuda_library_;                  // "loaded", "none" or the reason for a refusal
};

}  // namespace lz
