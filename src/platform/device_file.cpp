// Device files: simulated devices as JSON (schemas/device.schema.json), and those that the library contains.
#include <algorithm>

#include "base/embedded.h"
#include "base/json_reader.h"
#include "platform/device.h"

namespace lz {
namespace {

using nlohmann::json;

// The notation of a fact.
enum class Form : uint8_t { kInteger, kBool, kVersion, kGeneration, kInstructionSets, kIsa };
struct FactRow {
  DeviceField field;
  Form form;
  bool cpu, cuda, other;  // the platforms that must state it; others must not
};
constexpr auto kFacts = std::to_array<FactRow>({
    {DeviceField::kSm, Form::kInteger, false, true, false},
    {DeviceField::kGeneration, Form::kGeneration, false, true, true},
    {DeviceField::kTensorCoreGeneration, Form::kInteger, false, true, false},
    {DeviceField::kIsa, Form::kIsa, true, false, false},
    {DeviceField::kInstructionSets, Form::kInstructionSets, false, true, true},
    {DeviceField::kDriverVersion, Form::kVersion, false, true, false},
    {DeviceField::kCudaVersion, Form::kVersion, false, true, false},
    {DeviceField::kRocVersion, Form::kVersion, false, false, true},
    {DeviceField::kSupportsBf16, Form::kBool, true, true, true},
    {DeviceField::kSupportsFp16, Form::kBool, true, true, true},
    {DeviceField::kSupportsFp8, Form::kBool, true, true, true},
    {DeviceField::kSupportsFp4, Form::kBool, true, true, true},
    {DeviceField::kSupportsTensorCores, Form::kBool, true, true, true},
    {DeviceField::kSupportsGraphs, Form::kBool, true, true, true},
    {DeviceField::kMaxGridX, Form::kInteger, false, true, true},
    {DeviceField::kMaxGridY, Form::kInteger, false, true, true},
    {DeviceField::kMaxGridZ, Form::kInteger, false, true, true},
    {DeviceField::kMaxGridBlocks, Form::kInteger, false, true, true},
    {DeviceField::kMemoryBytes, Form::kInteger, true, true, true},
    {DeviceField::kNumCores, Form::kInteger, true, true, true},
    {DeviceField::kSharedMemoryPerBlock, Form::kInteger, false, true, true},
    {DeviceField::kL1dBytes, Form::kInteger, true, false, false},
    {DeviceField::kL2Bytes, Form::kInteger, true, true, true},
    {DeviceField::kL3Bytes, Form::kInteger, true, false, false},
});
static_assert(kFacts.size() + 1 == size_t(DeviceField::kCount), "every fact but the platform has a row");

Status Bad(std::string_view device, std::string_view key, std::string wanted, std::string got) {
  return Status(StatusCode::kConfig, {.field = std::string(device) + ": " + std::string(key),
                                      .wanted = std::move(wanted),
                                      .got = std::move(got),
                                      .fix = "see schemas/device.schema.json"});
}

// The bits of a list of names; -1 if a name is unknown.
int64_t BitsOf(const json& value, int64_t (*from_name)(std::string_view)) {
  if (!value.is_array()) return -1;
  int64_t bits = 0;
  for (const json& item : value) {
    const auto* name = item.get_ptr<const std::string*>();
    const int64_t bit = name ? from_name(*name) : 0;
    if (bit == 0) return -1;
    bits |= bit;
  }
  return bits;
}

// The fact's number, or a Status that describes the form it must have.
Result<int64_t> ReadFact(std::string_view device, const FactRow& row, const json& value) {
  const std::string_view key = kDeviceFields[size_t(row.field)].name;
  const auto* text = value.get_ptr<const std::string*>();
  int64_t number = -1;
  std::string wanted;
  switch (row.form) {
    case Form::kInteger:
      wanted = "a whole number from 0 on";
      if (value.is_number_unsigned() && value.get<uint64_t>() <= uint64_t(INT64_MAX)) number = value.get<int64_t>();
      break;
    case Form::kBool:
      wanted = "true or false";
      if (value.is_boolean()) number = value.get<bool>();
      break;
    case Form::kVersion:
      wanted = "a version as text, \"13.0\"";
      if (text) number = VersionNumber(*text);
      break;
    case Form::kGeneration:
      wanted = "a generation's name, \"hopper\"";
      if (text) number = GenerationFromName(*text);
      break;
    case Form::kInstructionSets:
      wanted = "a list of instruction sets, [\"wmma\"]";
      number = BitsOf(value, &InstructionSetFromName);
      break;
    case Form::kIsa:
      wanted = "a list of CPU instruction sets, [\"avx2\"]";
      number = BitsOf(value, &IsaFromName);
      break;
  }
  if (number < 0) return Bad(device, "facts." + std::string(key), wanted, JsonText(value));
  return number;
}

Status ReadFacts(const json& facts, Device* device) {
  const std::string& name = device->name;
  if (!facts.is_object()) return Bad(name, "facts", "an object", JsonText(facts));
  size_t known = 0;
  for (const FactRow& row : kFacts) {
    const std::string key(kDeviceFields[size_t(row.field)].name);
    const bool wanted = device->platform == Platform::kCpu    ? row.cpu
                        : device->platform == Platform::kCuda ? row.cuda
                                                              : row.other;
    const auto at = facts.find(key);
    if (at == facts.end()) {
      // Versions of drivers that a platform does not have are omitted; everything else must be stated.
      if (wanted && row.form == Form::kVersion && device->platform != Platform::kCuda) continue;
      if (wanted) return Bad(name, "facts." + key, "a value", "none");
      continue;
    }
    if (!wanted) {
      return Bad(name, "facts." + key, "no such fact on " + std::string(kPlatformNames[size_t(device->platform)]),
                 "one");
    }
    ++known;
    auto value = ReadFact(name, row, *at);
    if (!value.ok()) return value.TakeStatus();
    device->facts[size_t(row.field)] = *value;
  }
  if (known == facts.size()) return {};
  for (const auto& [key, value] : facts.items()) {
    const auto same = [&key = key](const FactRow& row) { return kDeviceFields[size_t(row.field)].name == key; };
    if (std::none_of(kFacts.begin(), kFacts.end(), same))
      return Bad(name, "facts." + key, "a known fact", "'" + key + "'");
  }
  return {};
}

Status ReadText(const json& document, std::string_view device, const char* key, std::string* text) {
  const auto at = document.find(key);
  if (at == document.end()) return Bad(device, key, "a text", "none");
  const auto* value = at->get_ptr<const std::string*>();
  if (!value || value->empty()) return Bad(device, key, "a text", JsonText(*at));
  *text = *value;
  return {};
}

Status ReadHead(const json& document, Device* device) {
  constexpr std::array<std::string_view, 9> kKeys = {"schema_version", "name",    "model", "vendor", "arch",
                                                     "platform",       "sources", "notes", "facts"};
  std::string version, platform;
  LZ_RETURN_IF_ERROR(ReadText(document, "device file", "name", &device->name));
  for (const auto& [key, value] : document.items()) {
    if (std::find(kKeys.begin(), kKeys.end(), key) == kKeys.end()) {
      return Bad(device->name, key, "a known key", "'" + key + "'");
    }
  }
  LZ_RETURN_IF_ERROR(ReadText(document, device->name, "schema_version", &version));
  if (version != "1.0") return Bad(device->name, "schema_version", "\"1.0\"", "\"" + version + "\"");
  LZ_RETURN_IF_ERROR(ReadText(document, device->name, "model", &device->model));
  LZ_RETURN_IF_ERROR(ReadText(document, device->name, "vendor", &device->vendor));
  LZ_RETURN_IF_ERROR(ReadText(document, device->name, "arch", &device->arch));
  LZ_RETURN_IF_ERROR(ReadText(document, device->name, "platform", &platform));
  const auto at = std::find(kPlatformNames.begin() + 1, kPlatformNames.end(), platform);
  if (at == kPlatformNames.end()) return Bad(device->name, "platform", "cpu, cuda, rocm, xpu or hpu", platform);
  device->platform = Platform(at - kPlatformNames.begin());
  device->facts[size_t(DeviceField::kPlatform)] = int64_t(device->platform);
  const auto sources = document.find("sources");
  if (sources == document.end() || !sources->is_array() || sources->empty()) {
    return Bad(device->name, "sources", "a list of documents that state the facts", "none");
  }
  return {};
}

constexpr auto kFiles = std::to_array<Embedded>({
#include "devices.inc"
});

}  // namespace

Result<Device> ParseDevice(std::string_view text) {
  auto document = ReadJson(text, {.what = "device file", .max_bytes = 65536, .max_depth = 4, .max_values = 1000});
  if (!document.ok()) return document.TakeStatus();
  if (!document->is_object()) return Bad("device file", "top level", "an object", JsonText(*document));
  Device device;
  device.simulated = true;
  Status head = ReadHead(*document, &device);
  if (!head.ok()) return head;
  const auto facts = document->find("facts");
  if (facts == document->end()) return Bad(device.name, "facts", "an object", "none");
  Status status = ReadFacts(*facts, &device);
  if (!status.ok()) return status;
  return device;
}

const std::vector<Device>& SimulatedDevices() {
  // A file that does not parse is skipped; the tests parse every file.
  static const std::vector<Device> devices = [] {
    std::vector<Device> list;
    for (const Embedded& file : kFiles) {
      auto device = ParseDevice(file.json);
      if (device.ok()) list.push_back(std::move(*device));
    }
    return list;
  }();
  return devices;
}

const Device* FindSimulatedDevice(std::string_view name) {
  for (const Device& device : SimulatedDevices()) {
    if (device.name == name) return &device;
  }
  return nullptr;
}

}  // namespace lz
