// The dispatch table in force: loading, and refusing what is not of this installation.
#include "engine/table.h"

#include <cctype>
#include <map>
#include <set>

#include "engine/engine.h"
#include "perfdb/device_id.h"
#include "policy/keys.h"
#include "policy/trust.h"
#include "table/build.h"

namespace lz {
namespace {

std::string Slug(std::string_view text) {
  std::string slug;
  for (const char c : text) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0;
    if (plain) slug += char(std::tolower(static_cast<unsigned char>(c)));
    if (!plain && !slug.empty() && slug.back() != '-') slug += '-';
  }
  while (slug.ends_with('-')) slug.pop_back();
  return slug;
}

std::string HashText(uint64_t hash) {
  char text[17];
  static constexpr char kHex[] = "0123456789abcdef";
  for (int i = 0; i < 16; ++i) text[i] = kHex[hash >> (60 - 4 * i) & 15];
  return {text, 16};
}

// Settings that decide selections and are not the default ones.
Json PolicyOf(const Policy& policy) {
  Json set = Json::object();
  for (const PolicyKey& key : PolicyKeys()) {
    const auto at = policy.settings.find(std::string(key.name));
    if (!IsHashed(key.type) || !DecidesSelection(key.name) || at == policy.settings.end()) continue;
    Json value = Json::parse(at->second, nullptr, false);
    if (value != Json::parse(key.value, nullptr, false)) set[std::string(key.name)] = std::move(value);
  }
  return set;
}

std::string TextOf(const Json& value) {
  return value.is_null() ? "none" : value.is_string() ? value.get<std::string>() : Dump(value);
}

const Json& Member(const Json& object, const std::string& name) {
  static const Json none;
  const auto at = object.is_object() ? object.find(name) : object.end();
  return object.is_object() && at != object.end() ? *at : none;
}

void CompareMembers(const Json& wanted, const Json& got, const std::string& prefix,
                    std::vector<TableDifference>* found) {
  std::map<std::string, bool> names;
  for (const Json* object : {&wanted, &got}) {
    for (const auto& [name, value] : object->items()) names[name] = true;
  }
  for (const auto& [name, unused] : names) {
    const Json &a = Member(wanted, name), &b = Member(got, name);
    if (a != b) found->push_back({prefix + name, TextOf(a), TextOf(b)});
  }
}

std::string TextOf(const std::vector<TableDifference>& differences) {
  std::string text;
  constexpr size_t kShown = 6;
  for (size_t i = 0; i < differences.size() && i < kShown; ++i) {
    const TableDifference& d = differences[i];
    text += (i ? "; " : "") + d.field + ": the table " + d.wanted + ", here " + d.got;
  }
  if (differences.size() > kShown) text += "; and " + std::to_string(differences.size() - kShown) + " more";
  return text;
}

}  // namespace

std::string HardwareSignature(const Device& device) {
  if (device.platform == Platform::kCpu) return "cpu_" + Slug(perfdb::DeviceId(device));
  const int64_t cuda = device.fact(DeviceField::kCudaVersion);
  return std::string(kPlatformNames[size_t(device.platform)]) + "_sm" + std::to_string(device.fact(DeviceField::kSm)) +
         "_cu" + std::to_string(cuda / 100) + "_" + Slug(perfdb::DeviceId(device));
}

Json TableIdentity(Selector& selector, const Device& device, const Policy& policy) {
  Json versions = Json::object();
  versions["layerzero"] = Engine::BuildId();
  std::map<std::string, std::string> libraries;
  for (const KernelEntry* k : selector.registry().Kernels(nullptr)) {
    if (k->availability.installed && !k->availability.version.empty()) libraries[k->source] = k->availability.version;
  }
  for (const auto& [name, version] : libraries) versions[name] = version;
  if (const int64_t driver = device.fact(DeviceField::kDriverVersion); driver > 0) versions["driver"] = driver;
  return {{"hardware_signature", HardwareSignature(device)},
          {"capabilities_hash", CapabilitiesHashOf(selector.registry().CapabilitiesHash(), device)},
          {"versions", std::move(versions)},
          {"policy_hash", HashText(policy.selection_hash)},
          {"policy", PolicyOf(policy)},
          {"tp_size", policy.tp_size}};
}

std::vector<TableDifference> CompareIdentities(const Json& about, const Json& here) {
  std::vector<TableDifference> found;
  const auto compare = [&](const char* name) {
    const Json &a = Member(about, name), &b = Member(here, name);
    if (a != b) found.push_back({name, TextOf(a), TextOf(b)});
  };
  compare("hardware_signature");
  CompareMembers(Member(about, "versions"), Member(here, "versions"), "version of ", &found);
  compare("capabilities_hash");
  CompareMembers(Member(about, "policy"), Member(here, "policy"), "policy ", &found);
  if (Member(about, "policy") == Member(here, "policy")) compare("policy_hash");
  const Json &invariant = Member(about, "tp_invariant"), &sizes = Member(about, "tp_sizes");
  const Json& size = Member(here, "tp_size");
  if (invariant != Json(true)) {
    if (Member(about, "tp_size") != size) found.push_back({"tp.size", TextOf(Member(about, "tp_size")), TextOf(size)});
  } else if (sizes.is_array() && !sizes.empty() && std::find(sizes.begin(), sizes.end(), size) == sizes.end()) {
    found.push_back({"tp.size", "one of " + Dump(sizes), TextOf(size)});
  }
  return found;
}

Status Engine::LoadTable(const std::string& path, const std::string& numerics, bool tp_invariant) {
  auto file = table::File::Open(path);
  if (!file.ok()) return file.TakeStatus();
  const auto policy = selector_.policies().policy(0);
  if (!policy.ok()) return Status(policy.status().code(), policy.status().parts());
  LZ_RETURN_IF_ERROR(CheckSigned(**policy, FileKind::kTable, path, (*file)->bytes()));
  const Json about = Json::parse((*file)->view().about(), nullptr, false);
  const auto refuse = [&](StatusCode code, std::string wanted, std::string got) {
    return Status(code, {.field = path,
                         .wanted = std::move(wanted),
                         .got = std::move(got),
                         .fix = "make it again here with `layerzero solve`"});
  };
  if (Member(about, "schema_version") != Json("1.0")) {
    return refuse(StatusCode::kVersionMismatch, "schema_version 1.0", TextOf(Member(about, "schema_version")));
  }
  const std::string signature = TextOf(Member(about, "hardware_signature"));
  if (signature.starts_with("cuda")) (void)selector_.context().IndexOf({2, 0});  // CUDA is probed at first use
  int32_t index = 0;
  for (int32_t i = selector_.context().num_devices() - 1; i >= 0; --i) {
    const Device& device = selector_.context().device(i);
    if (!device.simulated && HardwareSignature(device) == signature) index = i;
  }
  const Json here = TableIdentity(selector_, selector_.context().device(index), **policy);
  std::vector<TableDifference> differences = CompareIdentities(about, here);
  if (!numerics.empty() && Member(about, "numerics") != Json(numerics)) {
    differences.push_back({"numerics", TextOf(Member(about, "numerics")), numerics + " is wanted"});
  }
  if (tp_invariant && Member(about, "tp_invariant") != Json(true)) {
    differences.push_back({"tp_invariant", "false", "true is wanted"});
  }
  if (!differences.empty()) {
    return refuse(StatusCode::kVersionMismatch, "a table of this installation", TextOf(differences));
  }
  const Json& size = Member(about, "tp_size");
  const std::string hash = TextOf(Member(about, "capabilities_hash"));
  selector_.SetTable(std::make_shared<TableInForce>(
      *file, (*policy)->selection_hash, size.is_number_integer() ? size.get<int64_t>() : 1,
      Member(about, "tp_invariant") == Json(true), [this, hash](const Device& device) {
        return CapabilitiesHashOf(selector_.registry().CapabilitiesHash(), device) == hash;
      }));
  return {};
}

void Engine::LoadPolicyTable() {
  std::lock_guard lock(table_mutex_);
  if (!table_pending_.exchange(false)) return;
  Status loaded = LoadTable(policy_table_, "", false);
  table_problem_ = loaded.ok() ? "" : loaded.Text();
}

void Engine::PolicyTableChanged(const std::string& path) {
  {
    std::lock_guard lock(table_mutex_);
    if (const auto table = selector_.table()) table->Forget();  // the policy's device maps are facts of devices
    if (path == policy_table_) return;
    const bool had = !policy_table_.empty();
    policy_table_ = path;
    table_problem_.clear();
    table_pending_.store(!path.empty(), std::memory_order_release);
    if (!had) return;
  }
  selector_.SetTable(nullptr);
}

std::string Engine::TableState() {
  const auto table = selector_.table();
  std::lock_guard lock(table_mutex_);
  Json state = {{"path", nullptr}, {"problem", table_problem_.empty() ? Json(nullptr) : Json(table_problem_)}};
  if (!table) return Dump(state);
  const Json about = Json::parse(table->file().view().about(), nullptr, false);
  state["path"] = table->file().path();
  state["entries"] = table->file().view().num_entries();
  state["bytes"] = table->file().bytes().size();
  state["model_id"] = Member(about, "model_id");
  std::set<std::string> artifacts;  // keys of compiled code; a file need not be as solve wrote it
  for (const Json& plan : Member(about, "plans")) {
    for (const Json& key : Member(plan, "jit_artifacts")) artifacts.insert(TextOf(key));
  }
  state["jit_artifacts"] = artifacts;
  for (size_t use = 1; use < size_t(TableUse::kCount); ++use) {
    state["selections"][std::string(kTableUseNames[use])] = table->count(TableUse(use));
  }
  if (Status problem = table->problem(); !problem.ok()) state["problem"] = problem.Text();
  return Dump(state);
}

Result<std::string> Engine::Table(std::string_view command, std::string_view arguments_text) {
  const auto arguments = nlohmann::json::parse(arguments_text, nullptr, false);
  if (!arguments.is_object()) return Status(StatusCode::kConfig, {"arguments", "an object", "other JSON", {}});
  const auto text = [&](const char* name) {
    const auto at = arguments.find(name);
    return at != arguments.end() && at->is_string() ? at->get<std::string>() : std::string();
  };
  if (command == "state") return TableState();
  if (command == "load") {
    LZ_RETURN_IF_ERROR(LoadTable(text("path"), text("numerics"), arguments.value("tp_invariant", false)));
    return TableState();
  }
  if (command == "ignore") {
    Selector::IgnoreTable(arguments.value("on", false));
    return TableState();
  }
  if (command == "unload") {
    selector_.SetTable(nullptr);
    return TableState();
  }
  if (command == "build") {  // the bytes
    auto content = ReadTableDocument(selector_.registry(), text("document"), text("what"));
    if (!content.ok()) return content.TakeStatus();
    return table::Build(*content, text("what"));
  }
  if (command == "read") {
    auto file = table::File::Open(text("path"));
    if (!file.ok()) return file.TakeStatus();
    return Dump(TableDocument(selector_.registry(), (*file)->view().Read()));
  }
  if (command != "identity" && command != "compare") {
    return Status(StatusCode::kConfig, {"command", "one of tables", std::string(command), {}});
  }
  auto policy = selector_.policies().policy(arguments.value("policy", int64_t{0}));
  if (!policy.ok()) return policy.TakeStatus();
  auto device = selector_.context().FindByName(text("device").empty() ? "cpu" : text("device"));
  if (!device.ok()) return device.TakeStatus();
  const Json here = TableIdentity(selector_, selector_.context().device(*device), **policy);
  if (command == "identity") return Dump(here);
  Json found = Json::array();
  for (const TableDifference& d : CompareIdentities(Json::parse(text("about"), nullptr, false), here)) {
    found.push_back({{"field", d.field}, {"wanted", d.wanted}, {"got", d.got}});
  }
  return Dump(found);
}

}  // namespace lz
