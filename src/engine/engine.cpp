#include "engine/engine.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>

#include <chrono>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "build_id.h"
#include "engine/cuda_library.h"
#include "engine/served_calls.h"
#include "pipeline/dispatch_counters.h"
#include "pipeline/filter_health.h"
#include "platform/cuda_driver.h"
#include "policy/home.h"
#include "policy/names.h"

namespace lz {

namespace {

// Two registries and two caches in one process would disagree without a sign of it.
Status OnlyCopy() {
  Dl_info self{};
  if (!dladdr(reinterpret_cast<void*>(&OnlyCopy), &self) || !self.dli_fname) return {};
  struct Search {
    const void* own_base;
    std::string other;
  } search{self.dli_fbase, {}};
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        auto* s = static_cast<Search*>(data);
        const std::string_view path = info->dlpi_name ? info->dlpi_name : "";
        const bool ours = path.substr(path.rfind('/') + 1) == "liblayerzero.so";
        if (ours && reinterpret_cast<const void*>(info->dlpi_addr) != s->own_base) s->other = path;
        return 0;
      },
      &search);
  if (search.other.empty()) return {};
  return Status(StatusCode::kVersionMismatch, {.field = "liblayerzero.so",
                                               .wanted = "one copy in a process",
                                               .got = "another one at " + search.other,
                                               .fix = "remove one of the two installations"});
}

}  // namespace

Engine& Engine::Get() {
  static Engine* const engine = new Engine;  // never destroyed: threads may outlive main
  return *engine;
}
const char* Engine::BuildId() { return LZ_BUILD_ID; }
const char* Engine::Version() { return LZ_VERSION; }

Engine::Engine() {
  startup_ = selector_.registry().startup().ok()
                 ? Status()
                 : Status(StatusCode::kInternal, selector_.registry().startup().parts());
  auto cuda = LoadCudaLibrary(selector_.registry(), CudaLibraryPath());  // optional: a refusal is recorded and is
                                                                         // not fatal
  cuda_library_ = !cuda.ok() ? cuda.status().Text() : *cuda ? "loaded" : "none";
  if (Status named = selector_.registry().CheckLibraries(); !named.ok() && startup_.ok()) startup_ = std::move(named);
  auto layers = ProcessLayers();
  if (Status one = OnlyCopy(); !one.ok() && startup_.ok()) startup_ = std::move(one);
  Status policy = layers.ok() ? selector_.policies().Load(std::move(*layers)) : layers.TakeStatus();
  if (!policy.ok()) {
    (void)selector_.policies().Load({});
    startup_is_policy_ = startup_.ok();
    if (startup_.ok()) startup_ = std::move(policy);
  }
  failed_.store(!startup_.ok(), std::memory_order_release);
  PolicyChanged();
  selector_.set_measurements([this](const KernelEntry& k, const BoundCall& r) { return Measured(k, r); },
                             [this](const BoundCall& r) { BeforeSelecting(r); });
  selector_.set_prover([this](const Backend& b, const std::vector<std::string>& adapters, std::string* error) {
    const HostRuntime* const runtime = host();
    return runtime && runtime->prove ? runtime->prove(b, adapters, error) : Backend::State::kUnproven;
  });
  selector_.set_free_gpu_memory([this](int32_t ordinal) {
    const HostRuntime* const runtime = host();
    const int64_t free = runtime && runtime->free_gpu_memory ? runtime->free_gpu_memory(ordinal) : -1;
    return free < 0 ? FreeCudaBytes(ordinal) : free;
  });
  // A forked child has this thread only: the plans that it inherited are selected again, on one
  // thread (base/thread_pool.h).
  pthread_atfork([] { Get().selector_.registry().BeforeFork(); }, [] { Get().selector_.registry().AfterFork(); },
                 [] {
                   Get().selector_.registry().AfterFork();
                   Get().selector_.health().AfterFork();
                   Get().AfterFork();
                   Get().Invalidate();
                 });
}

// The host may need a lock that another thread holds while it waits here, so no lock of the engine is held during
// its part.
void Engine::BeforeSelecting(const BoundCall& r) {
  if (!prior_read_[size_t(r.device)].load(std::memory_order_acquire)) ReadPrior(r.device);
  if (!host_began_.load(std::memory_order_acquire)) {
    const HostRuntime* const runtime = host();
    if (runtime && runtime->begin && runtime->begin()) host_began_.store(true, std::memory_order_release);
  }
  const bool registered = !host() || host_began_.load(std::memory_order_acquire);
  if (table_pending_.load(std::memory_order_acquire) && registered) LoadPolicyTable();
  selector_.health().Begin();
}

void Engine::PolicyChanged() {
  std::lock_guard lock(policy_mutex_);
  const auto in_force = selector_.policies().policy(0);
  if (!in_force.ok()) return;  // no policy was ever in force: startup_ has the reason
  const Policy& policy = **in_force;
  std::vector<GenerationRange> ranges;
  for (const SmRange& r : policy.sm_to_generation) {
    const auto tensor_cores = policy.generation_to_tc_gen.find(r.generation);
    ranges.push_back({int(r.first), int(r.last), r.generation,
                      tensor_cores == policy.generation_to_tc_gen.end() ? 0 : int(tensor_cores->second)});
  }
  if (!ranges.empty()) selector_.context().SetGenerations(std::move(ranges));
  if (policy.cache_ttl_seconds != ttl_seconds_) {
    ttl_seconds_ = policy.cache_ttl_seconds;
    time_to_live_.Start(ttl_seconds_, [this] { Invalidate(); });
  }
  const bool counted = policy.metrics_enabled || !policy.metrics_listen.empty() || !policy.metrics_file.empty();
  KernelCounters::OfProcess()->SetCounting(counted);
  selector_.health().SetLimits({
      .breaker = {.failures = int(policy.health_failures), .retry_s = policy.health_retry_s},
      .error_budget = int(policy.health_error_budget),
      .folder = policy.health_persist && !LacksHome(policy.cache_dir) ? policy.cache_dir : std::string(),
      .build = BuildId(),
  });
  PolicyTableChanged(policy.table);
  const bool shadow = policy.health_shadow_rate > 0;
  if (shadow != std::exchange(shadow_of_policy_, shadow)) Shadow(shadow ? 1 : -1);
  const auto number = [&](const char* key) { return std::strtod(policy.settings.at(key).c_str(), nullptr); };
  SampleServedCalls(policy.perfdb_enabled ? number("perfdb.sample_rate") : 0, int64_t(number("perfdb.min_samples")));
  selector_.Invalidate(EpochKind::kPolicy);
}

namespace {
std::atomic<Engine::ShadowMaker> g_shadow_maker{nullptr};
}

void Engine::SetShadow(ShadowMaker make) { g_shadow_maker.store(make, std::memory_order_release); }

void Engine::Shadow(int delta) {
  std::lock_guard lock(shadow_mutex_);
  shadows_ += delta;
  if (shadows_ > 0 && !shadow_) {
    const ShadowMaker make = g_shadow_maker.load(std::memory_order_acquire);
    if (make) AddObserver(shadow_ = make(selector_));
  } else if (shadows_ <= 0 && shadow_) {
    RemoveObserver(shadow_.get());
    shadow_.reset();
  }
  shadowed_.store(shadow_ != nullptr, std::memory_order_relaxed);
}

std::string Engine::HealthText() {
  selector_.health().Begin();
  return selector_.health().ToJson().dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Result<size_t> Engine::ResetHealth(const std::string& kernel) {
  selector_.health().Begin();
  Status problem;
  const size_t changed = selector_.health().Reset(kernel, &problem);
  if (!problem.ok()) return problem;
  return changed;
}

Status Engine::SetGraphVerdict(Request& r, std::string_view kernel, std::string_view outcome,
                               const std::string& detail) {
  const Outcome found = OutcomeFromName(outcome);
  if (found != Outcome::kGraphSafe && found != Outcome::kFailed && found != Outcome::kWrong) {
    return Status(StatusCode::kInvalidRequest, {.field = "outcome",
                                                .wanted = "graph_safe, failed_before_write or wrong",
                                                .got = "'" + std::string(outcome) + "'"});
  }
  LZ_RETURN_IF_ERROR(Bind(r));
  const int variant = VariantOf(r);
  const std::string_view id = variant < 0 ? "" : r.op->contract().variants[size_t(variant)].id;
  const KernelEntry* const entry = selector_.registry().FindKernel(id, kernel);
  if (!entry) {
    return Status(StatusCode::kInvalidRequest, {.field = "kernel",
                                                .wanted = "a kernel of " + std::string(id),
                                                .got = "'" + std::string(kernel) + "'",
                                                .fix = "`layerzero list` shows the kernels"});
  }
  Health& health = selector_.health();
  health.Begin();
  health.SetGraphVerdict(*entry, r.device, ClassOf(r), found, detail);
  return {};
}

Status Engine::Bind(Request& request) {
  // A policy that cannot be read may have had locks and denials: nothing runs until it is corrected.
  if (failed_.load(std::memory_order_acquire)) [[unlikely]] {
    if (Status wrong = startup(); !wrong.ok()) return wrong;
  }
  return selector_.Bind(request);
}
Result<const Plan*> Engine::Select(Request& request) { return selector_.Select(request); }
Result<const Plan*> Engine::Select(Request& request, InlineCache& site) { return selector_.Select(request, site); }

const Operation* Engine::Find(std::string_view name) const { return selector_.registry().Find(name); }
const Plan* Engine::Lookup(const InlineCache& site, const Facts& facts) const {
  return LookupInline(site, facts, epochs());
}
ReferenceUse Engine::ReferenceUseOf(const Plan& plan) const {
  return selector_.reference_uses().Read(*plan.reference_use);
}
Status Engine::Run(const Plan& plan, Request& request) { return selector_.Run(plan, request); }
Status Engine::RunOnce(const Plan& plan, Request& request) { return selector_.RunOnce(plan, request); }
const Plan* Engine::Next(const Plan& plan, Request& r, const Status& status, Selector::Failures* failures) {
  return selector_.Next(plan, r, status, failures);
}
void Engine::Count(const Selector::Failures& failures) { selector_.Count(failures); }
Status Engine::CallHost(const KernelEntry& kernel, const Transforms& transforms, const Request& r,
                        HostTensor* tensors) {
  if (const HostRuntime* const runtime = host()) return runtime->call(kernel, r, transforms, tensors);
  for (size_t i = 0; i < r.op->num_inputs() + r.op->num_outputs(); ++i) {
    if (tensors[i].owner) tensors[i].release(tensors[i].owner);
  }
  return Status(StatusCode::kNotInstalled, {.field = std::string(r.op->name()) + ": kernel " + kernel.id,
                                            .wanted = "a process with `import layerzero`",
                                            .got = "none"});
}

std::string Engine::LayoutWarning(const Request& r) {
  const std::vector<std::string>& names = r.op->layout_names();
  std::string shapes;
  for (size_t i = 0; i < r.op->num_inputs(); ++i) {
    const lz_tensor& t = r.tensors[i];
    if (!r.op->input(i).layout || t.ndim < 0) continue;
    shapes += (shapes.empty() ? "" : ", ") + std::string(r.op->input(i).name) + " [";
    for (int32_t d = 0; d < t.ndim; ++d) {
      const int32_t axis = r.layout > 0 ? int32_t(r.op->layouts()[size_t(r.layout)][size_t(d)]) : d;
      shapes += (d ? ", " : "") + std::to_string(t.shape[axis]);
    }
    shapes += "]";
  }
  const std::string by = r.layout_source == LayoutSource::kAssumed
                             ? ""
                             : " by its " + std::string(kLayoutSourceNames[size_t(r.layout_source)]);
  return std::string(r.op->name()) + ": layout: assumed " + names[size_t(r.layout)] + by + ", got none, and " + shapes +
         " may be " + names[size_t(1 - r.layout)] + " too; pass layout=";
}

double Engine::LayoutWarnInterval(const Request& r) { return selector_.LayoutRulesOf(r.policy).warn_interval_s; }

Status Engine::LoadConfig(const std::string& path) {
  auto layers = ProcessLayers(path);
  if (!layers.ok()) return layers.TakeStatus();
  Status status = selector_.policies().Load(std::move(*layers));
  if (!status.ok()) return status;
  {
    std::lock_guard lock(startup_mutex_);
    if (startup_is_policy_) {  // the mistake is replaced
      startup_ = Status();
      failed_.store(false, std::memory_order_release);
    }
  }
  PolicyChanged();
  ForgetMovedRecords();
  return status;
}

Status Engine::Configure(const std::string& json) {
  Status status = selector_.policies().Configure(json);
  if (!status.ok()) return status;
  PolicyChanged();
  ForgetMovedRecords();
  return status;
}

Result<int64_t> Engine::PolicyScope(int64_t parent, std::string json) {
  return selector_.policies().Scope(parent, std::move(json));
}

Status Engine::startup() const {
  std::lock_guard lock(startup_mutex_);
  return startup_.ok() ? Status() : Status(startup_.code(), startup_.parts());
}

// kernel= is a lock on every operation of the contract, for the calls of one scope.
Result<int64_t> Engine::KernelScope(int64_t parent, const Operation& op, std::string_view kernel) {
  const Registry& registry = selector_.registry();
  if (!registry.FindKernel(op.name(), kernel)) {
    const bool elsewhere = registry.FindKernel("", kernel) != nullptr;
    return Status(StatusCode::kNoKernel, {.field = std::string(op.name()) + ": kernel",
                                          .wanted = "the kernel '" + std::string(kernel) + "'",
                                          .got = elsewhere ? "a kernel of other operations" : "no kernel of that id",
                                          .fix = NearestKernelFix(registry, kernel, &op)});
  }
  nlohmann::json locks = nlohmann::json::object();
  for (const Variant& v : op.contract().variants) locks[std::string(v.id)] = kernel;
  return PolicyScope(parent, nlohmann::json{{"locks", std::move(locks)}}.dump());
}

void Engine::AllNamed(std::vector<std::string> later) { selector_.policies().AllNamed({later.begin(), later.end()}); }

bool Engine::LogsSelections(int64_t id) {
  const auto policy = selector_.policies().policy(id);
  return policy.ok() && (*policy)->log_selections;
}
std::shared_ptr<const Policy> Engine::PolicyInForce() {
  auto policy = selector_.policies().policy(0);
  return policy.ok() ? *policy : nullptr;
}
Result<std::string> Engine::PolicyText(int64_t id) {
  auto policy = selector_.policies().policy(id);
  if (!policy.ok()) return policy.TakeStatus();
  return PolicyJson(**policy);
}

}  // namespace lz
