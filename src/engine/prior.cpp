// Measured times in force, by device: those of the machine's owner, those that the library contains, or as given.
#include "perfdb/prior.h"

#include <array>
#include <cstdlib>
#include <ctime>
#include <new>
#include <nlohmann/json.hpp>
#include <set>

#include "base/embedded.h"
#include "engine/engine.h"
#include "perfdb/device_id.h"
#include "perfdb/runs.h"
#include "pipeline/request_facts.h"
#include "policy/home.h"

namespace lz {
namespace {

constexpr auto kCarried = std::to_array<Embedded>({
    {"", ""},  // an array may not be empty
#include "priors.inc"
});

Status Add(std::string_view text, std::string_view what, std::vector<std::vector<perfdb::Record>>* groups) {
  auto records = perfdb::ReadRecords(text, what);
  if (!records.ok()) return records.TakeStatus();
  groups->push_back(std::move(*records));
  return {};
}

bool HasPriors(const Device& device) {
  return device.platform == Platform::kCuda || (device.platform == Platform::kCpu && !device.simulated);
}

// The text after the first `"name": ` of a carried file, whose first record has every column.
std::string_view HeadOf(const Embedded& file, std::string_view name) {
  const std::string_view head = file.json.substr(0, 1024);
  const std::string key = "\"" + std::string(name) + "\": ";
  const size_t at = head.find(key);
  return at == head.npos ? std::string_view() : head.substr(at + key.size());
}

// Each file holds one device's records; those of other types of device are not worth parsing. 2: of this device, or a
// CPU's of this type; 1: of another GPU of its generation; 0: of neither.
int Nearness(const Embedded& file, const Device& device) {
  const std::string id = perfdb::DeviceId(device);
  const bool is_cpu = device.platform == Platform::kCpu;
  const std::string ours = is_cpu ? "\"" + std::string(perfdb::DeviceType(id)) + "," : "\"" + id + "\"";
  if (HeadOf(file, "device_id").starts_with(ours)) return 2;
  const std::string sm(HeadOf(file, "sm_version").substr(0, 8));
  return !is_cpu && perfdb::IsSameGeneration(std::atoi(sm.c_str()), device.fact(DeviceField::kSm)) ? 1 : 0;
}

}  // namespace

std::optional<Measurement> Engine::Measured(const KernelEntry& kernel, const BoundCall& r) const {
  const std::shared_ptr<const perfdb::Prior> prior = PriorInForce(r.device);
  if (!prior || r.op->num_inputs() == 0) return std::nullopt;
  const bool in_graph = r.flags & LZ_FLAG_CAPTURING;
  const auto time = prior->Find(kernel, EffectiveDType(r, 0), r.axes(), OptionsOf(r), in_graph);
  if (!time) return std::nullopt;
  return Measurement{time->median_us, time->noise, time->confidence, time->other_version};
}

std::shared_ptr<const perfdb::Prior> Engine::PriorInForce(int32_t device) const {
  std::lock_guard lock(prior_mutex_);
  const auto prior = priors_.find(device);
  return prior == priors_.end() ? nullptr : prior->second;
}

size_t Engine::NumRecordsInForce() const {
  std::lock_guard lock(prior_mutex_);
  std::set<const perfdb::Prior*> priors;  // devices of one type share one
  for (const auto& [device, prior] : priors_) priors.insert(prior.get());
  size_t records = 0;
  for (const perfdb::Prior* prior : priors) records += prior->num_records();
  return records;
}

std::string Engine::DeviceId(std::string_view device) {
  const auto index = selector_.context().FindByName(device);
  return index.ok() ? perfdb::DeviceId(selector_.context().device(*index)) : "";
}

std::string Engine::MeasuredCalls() const {
  auto list = nlohmann::json::array();
  if (const auto prior = PriorInForce(0)) {
    for (const auto& call : prior->MeasuredCalls()) list.push_back({{"operation", call.operation}, {"us", call.us}});
  }
  return list.dump();
}

MeasuredRecords::Paths Engine::RecordPaths() const {
  const auto policy = selector_.policies().policy(0);
  if (!policy.ok() || (*policy)->cache_dir.empty() || LacksHome((*policy)->cache_dir)) return {};
  const Policy& p = **policy;
  return {.database = p.perfdb_path.empty() ? p.cache_dir + "/perfdb.sqlite" : p.perfdb_path,
          .file = p.cache_dir + "/prior.records.json"};
}

// The rows of one run for each operation, of devices that this one is like.
std::vector<perfdb::Record> Engine::RecordsOfDatabase(const Device& device) const {
  const std::string id = perfdb::DeviceId(device);
  const int64_t sm = device.fact(DeviceField::kSm);
  std::vector<perfdb::Record> records;
  for (const perfdb::Record& r : machine_.load()->found()->database) {
    const bool similar =
        sm ? perfdb::IsSameGeneration(r.sm_version, sm) : perfdb::DeviceType(r.device_id) == perfdb::DeviceType(id);
    if (r.device_id == id || similar) records.push_back(r);
  }
  perfdb::Here here = {.now = std::time(nullptr)};
  here.is_loaded = [this](const perfdb::Record& r) {
    const KernelEntry* const kernel = selector_.registry().FindKernel(r.operation, r.kernel_id);
    if (!kernel || kernel->availability.version.empty()) return true;
    return perfdb::IsSameVersion(perfdb::LibraryVersionOf(r), kernel->availability.version);
  };
  if (!device.uuid.empty()) here.uuids.push_back(device.uuid);
  if (const int64_t driver = device.fact(DeviceField::kDriverVersion); sm && driver > 0) {
    here.driver = std::to_string(driver / 1000) + "." + std::to_string(driver % 1000);
  }
  return perfdb::InForce(std::move(records), here);
}

Engine::RecordGroups Engine::RecordsFor(const Device& device, Status* problem) const {
  RecordGroups groups;
  if (!HasPriors(device)) return groups;
  if (given_records_) return *given_records_;
  groups.push_back(RecordsOfDatabase(device));
  groups.push_back(machine_.load()->found()->file);
  for (const int nearness : {2, 1}) {
    for (const Embedded& file : kCarried) {
      if (!problem->ok() || Nearness(file, device) != nearness) continue;
      *problem = Add(file.json, file.name, &groups);
    }
  }
  return groups;
}

// A child of a process that was reading has no thread that reads on; records in the queue are the parent's. A mutex
// that another thread held stays locked, and what it changed may be half done: both are made again, and the records are
// read again.
void Engine::AfterFork() {
  writer_.store(nullptr);
  const auto unlocked = [](std::mutex& mutex) {
    const bool was_free = mutex.try_lock();
    if (was_free) {
      mutex.unlock();
    } else {
      new (&mutex) std::mutex;
    }
    return was_free;
  };
  bool again = machine_.load()->IsReading();
  if (!unlocked(prior_change_mutex_)) again = true;
  if (!unlocked(prior_mutex_)) {
    new (&priors_) Priors;
    new (&prior_problem_) std::string;
    again = true;
  }
  if (!again) return;
  machine_.store(new MeasuredRecords);
  for (auto& read : prior_read_) read.store(false);
}

// Devices of one type share a prior.
std::shared_ptr<const perfdb::Prior> Engine::MakePrior(const Device& device, const Priors& known,
                                                       Status* problem) const {
  const std::string id = perfdb::DeviceId(device);
  for (const auto& [index, prior] : known) {
    const Device& other = selector_.context().device(index);
    if (other.platform == device.platform && other.simulated == device.simulated && perfdb::DeviceId(other) == id) {
      return prior;
    }
  }
  const RecordGroups groups = RecordsFor(device, problem);
  return std::make_shared<const perfdb::Prior>(selector_.registry(), groups, id, device.fact(DeviceField::kSm));
}

Status Engine::PutInForce(Priors priors) {
  std::vector<const perfdb::Prior*> all;
  for (const auto& [device, prior] : priors) all.push_back(prior.get());
  LZ_RETURN_IF_ERROR(perfdb::Prior::SplitClasses(selector_.registry(), all));
  {
    std::lock_guard lock(prior_mutex_);
    priors_ = std::move(priors);
  }
  selector_.Invalidate(EpochKind::kPerf);
  return {};
}

void Engine::ReadPrior(int32_t device) {
  bool is_given;
  {
    std::lock_guard change(prior_change_mutex_);
    is_given = given_records_.has_value();
  }
  if (!is_given) {  // no lock is held while it waits
    const auto late = [] {
      Engine& engine = Get();
      std::lock_guard change(engine.prior_change_mutex_);
      if (!engine.given_records_) (void)engine.ReadPriorsAgain();
    };
    for (machine_.load()->Begin(RecordPaths(), late); !machine_.load()->IsOf(RecordPaths());) {  // they moved meanwhile
      ForgetMovedRecords();
      machine_.load()->Begin(RecordPaths(), late);
    }
  }
  std::lock_guard change(prior_change_mutex_);
  if (prior_read_[size_t(device)].load(std::memory_order_relaxed)) return;
  Status problem;
  Priors priors = priors_;
  auto prior = MakePrior(selector_.context().device(device), priors, &problem);
  if (prior->num_records() > 0) {  // plans stay valid if nothing was measured
    priors[device] = std::move(prior);
    if (Status made = PutInForce(std::move(priors)); problem.ok()) problem = std::move(made);
  }
  if (!problem.ok()) {
    std::lock_guard lock(prior_mutex_);
    prior_problem_ = problem.Text();
  }
  prior_read_[size_t(device)].store(true, std::memory_order_release);
}

Status Engine::UsePrior(std::string_view records, std::string_view what) {
  RecordGroups groups;
  LZ_RETURN_IF_ERROR(Add(records, what, &groups));
  std::lock_guard change(prior_change_mutex_);
  given_records_ = std::move(groups);
  return ReadPriorsAgain();
}

Status Engine::UsePriorOfMachine() {
  std::lock_guard change(prior_change_mutex_);
  given_records_.reset();
  machine_.load()->ReadNow(RecordPaths());
  return ReadPriorsAgain();
}

// No file is read here: callers may hold locks of their host.
void Engine::ForgetMovedRecords() {
  std::lock_guard change(prior_change_mutex_);
  if (machine_.load()->IsOf(RecordPaths())) return;
  machine_.load()->Forget();
  if (given_records_) return;
  for (auto& read : prior_read_) read.store(false, std::memory_order_release);
  (void)PutInForce({});
}

Status Engine::ReadPriorsAgain() {
  Status problem;
  Priors priors;
  for (int32_t i = 0; i < selector_.context().num_devices(); ++i) {
    std::atomic<bool>& read = prior_read_[size_t(i)];
    if (i > 0 && !read.load(std::memory_order_relaxed)) continue;
    priors[i] = MakePrior(selector_.context().device(i), priors, &problem);
    read.store(true, std::memory_order_release);
  }
  if (Status made = PutInForce(std::move(priors)); problem.ok()) problem = std::move(made);
  std::lock_guard lock(prior_mutex_);
  prior_problem_ = problem.ok() ? "" : problem.Text();
  return problem;
}

}  // namespace lz
