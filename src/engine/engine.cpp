#include "engine/engine.h"

#include <fstream>
#include <sstream>

#include "build_id.h"

namespace lz {

Engine& Engine::Get() {
  static Engine* const engine = new Engine;  // threads may outlive main: never destroyed
  return *engine;
}
const char* Engine::BuildId() { return LZ_BUILD_ID; }
const char* Engine::Version() { return LZ_VERSION; }

Engine::Engine() {
  startup_ = selector_.registry().startup().ok()
                 ? Status()
                 : Status(StatusCode::kInternal, selector_.registry().startup().parts());
  auto layers = ProcessLayers();
  Status policy = layers.ok() ? selector_.policies().Load(std::move(*layers)) : layers.TakeStatus();
  if (!policy.ok()) {
    (void)selector_.policies().Load({});
    if (startup_.ok()) startup_ = std::move(policy);
  }
}

Status Engine::Prepare(Request& request) { return selector_.Prepare(request); }
Result<const Plan*> Engine::Select(Request& request) { return selector_.Select(request); }
Result<const Plan*> Engine::Select(Request& request, Box& site) { return selector_.Select(request, site); }

const Operation* Engine::Find(std::string_view name) const { return selector_.registry().Find(name); }
const Plan* Engine::Lookup(const Box& site, const Facts& facts) const { return LookupBox(site, facts, epochs()); }
const Plan* Engine::Lookup(const Request& request) const { return selector_.Lookup(request); }
void Engine::BindOutput(Request& request, size_t output, void* data) { lz::BindOutput(request, output, data); }
uint64_t Engine::WorkspaceBytes(const Plan& plan, const Request& request) const {
  return lz::WorkspaceBytes(plan, request);
}
Status Engine::Run(const Plan& plan, Request& request) { return selector_.Run(plan, request); }

Status Engine::LoadConfig(const std::string& path) {
  std::ifstream file(path);
  if (!file) {
    return Status(StatusCode::kConfig, {.field = path, .wanted = "a readable policy file", .got = "none"});
  }
  std::stringstream text;
  text << file.rdbuf();
  auto layers = ProcessLayers();
  if (!layers.ok()) return layers.TakeStatus();
  std::vector<PolicyLayer> kept;
  for (PolicyLayer& layer : *layers) {
    if (layer.name.ends_with("layerzero.yaml")) continue;
    if (layer.name == "environment") kept.push_back({path, text.str()});
    kept.push_back(std::move(layer));
  }
  if (kept.empty() || kept.back().name != "environment") kept.push_back({path, text.str()});
  Status status = selector_.policies().Load(std::move(kept));
  if (status.ok()) {
    startup_ = Status();
    selector_.Invalidate(EpochKind::kPolicy);
  }
  return status;
}

Status Engine::Configure(std::string json) {
  Status status = selector_.policies().Configure(std::move(json));
  if (status.ok()) selector_.Invalidate(EpochKind::kPolicy);
  return status;
}

Result<int64_t> Engine::PolicyScope(int64_t parent, std::string json) {
  return selector_.policies().Scope(parent, std::move(json));
}

std::string Engine::PolicyText(int64_t id) { return PolicyJson(selector_.policies().policy(id)); }

}  // namespace lz
