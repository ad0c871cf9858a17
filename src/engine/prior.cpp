// Measured times in force: from the machine's own file, from those that the library contains, or as given.
#include "perfdb/prior.h"

#include <array>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "engine/engine.h"
#include "perfdb/device_id.h"
#include "pipeline/request_facts.h"

namespace lz {
namespace {

using std::string_view_literals::operator""sv;

struct Embedded {
  std::string_view name;
  std::string_view json;
};
constexpr auto kCarried = std::to_array<Embedded>({
    {"", ""},  // an array may not be empty
#include "priors.inc"
});

using Groups = std::vector<std::vector<perfdb::Record>>;

Status Add(std::string_view text, std::string_view what, Groups* groups) {
  auto records = perfdb::ReadRecords(text, what);
  if (!records.ok()) return records.TakeStatus();
  groups->push_back(std::move(*records));
  return {};
}

}  // namespace

std::optional<Measurement> Engine::Measured(const KernelEntry& kernel, const Request& r) const {
  const std::shared_ptr<const perfdb::Prior> prior = PriorInForce();
  const Device& device = selector_.context().device(r.device);
  if (!prior || r.op->num_inputs() == 0 || device.platform != Platform::kCpu || device.simulated) return std::nullopt;
  const auto time = prior->Find(kernel, EffectiveDType(r, 0), r.axes(), OptionsOf(r));
  if (!time) return std::nullopt;
  return Measurement{time->median_us, time->noise, time->confidence, time->other_version};
}

std::shared_ptr<const perfdb::Prior> Engine::PriorInForce() const {
  std::lock_guard lock(prior_mutex_);
  return prior_;
}

std::string Engine::DeviceId(std::string_view device) {
  const auto index = selector_.context().FindByName(device);
  return index.ok() ? perfdb::DeviceId(selector_.context().device(*index)) : "";
}

std::string Engine::MeasuredCalls() const {
  auto list = nlohmann::json::array();
  if (const auto prior = PriorInForce()) {
    for (const auto& call : prior->MeasuredCalls()) list.push_back({{"operation", call.operation}, {"us", call.us}});
  }
  return list.dump();
}

Status Engine::PutInForce(std::span<const std::vector<perfdb::Record>> groups) {
  auto prior = std::make_shared<const perfdb::Prior>(selector_.registry(), groups, DeviceId("cpu"));
  LZ_RETURN_IF_ERROR(prior->AddThresholds(selector_.registry()));
  {
    std::lock_guard lock(prior_mutex_);
    prior_ = std::move(prior);
    prior_problem_.clear();
  }
  selector_.Invalidate(EpochKind::kPerf);
  return {};
}

Status Engine::UsePrior(std::string_view records, std::string_view what) {
  std::call_once(prior_read_, [] {});  // the machine's own are no longer wanted
  Groups groups;
  LZ_RETURN_IF_ERROR(Add(records, what, &groups));
  return PutInForce(groups);
}

Status Engine::UsePriorOfMachine() {
  Groups groups;
  Status status;
  const auto policy = selector_.policies().policy(0);
  const std::string path = policy.ok() ? (*policy)->cache_dir + "/prior.records.json" : "";
  if (std::ifstream file(path); file) {
    std::stringstream text;
    text << file.rdbuf();
    status = Add(text.str(), path, &groups);
  }
  // Each text holds one machine's records; those of other types of CPU are not worth parsing.
  const std::string id = DeviceId("cpu"), ours = "\"device_id\": \"" + std::string(perfdb::DeviceType(id)) + ",";
  for (const Embedded& file : kCarried) {
    if (!status.ok() || file.json.substr(0, 1024).find(ours) == std::string_view::npos) continue;
    status = Add(file.json, file.name, &groups);
  }
  if (Status made = PutInForce(groups); status.ok()) status = std::move(made);
  if (!status.ok()) {
    std::lock_guard lock(prior_mutex_);
    prior_problem_ = status.Text();
  }
  return status;
}

}  // namespace lz
