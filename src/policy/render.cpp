// The files that are made from the key table: default policy, JSON schema, the guide's table.
#include <string>

#include "core/contract.h"
#include "platform/device.h"
#include "policy/keys.h"
#include "policy/values.h"

namespace lz {
namespace {

using nlohmann::ordered_json;

struct NameParts {
  std::string section;  // "" at the top level
  std::string leaf;
};
NameParts Split(std::string_view name) {
  const size_t dot = name.find('.');
  if (dot == std::string_view::npos) return {"", std::string(name)};
  return {std::string(name.substr(0, dot)), std::string(name.substr(dot + 1))};
}

// Values as people write them: [8, 12], names without quotes.
std::string YamlText(const nlohmann::json& value) {
  if (value.is_string() && value.get_ref<const std::string&>().empty()) return "\"\"";
  if (value.is_string()) {
    const std::string text = value.get<std::string>();
    return text[0] >= '0' && text[0] <= '9' ? Dump(value) : text[0] == '~' ? Dump(value) : text;
  }
  if (!value.is_structured()) return Dump(value);
  std::string out;
  for (const auto& [name, item] : value.items()) {
    out += (out.empty() ? "" : ", ") + (value.is_object() ? name + ": " : "") + YamlText(item);
  }
  return (value.is_object() ? "{" : "[") + out + (value.is_object() ? "}" : "]");
}

ordered_json IntegerType(const PolicyKey& key) {
  return {{"type", "integer"}, {"minimum", int64_t(key.min)}, {"maximum", int64_t(key.max)}};
}

ordered_json NameList() { return {{"type", "array"}, {"items", {{"type", "string"}}}, {"uniqueItems", true}}; }

ordered_json RuleType() {
  const ordered_json names = {{"type", ordered_json::array({"string", "array"})}, {"items", {{"type", "string"}}}};
  const ordered_json scalar = ordered_json::array({"string", "number", "boolean", "array"});
  ordered_json match = {{"type", ordered_json::array({"object", "null"})},
                        {"additionalProperties", {{"type", scalar}}}};
  ordered_json actions = {{"match", match}};
  for (const char* name : {"prefer", "avoid", "avoid_sources", "deny", "allowlist"}) actions[name] = names;
  actions["lock"] = {{"type", "string"}};
  return {{"type", "object"}, {"additionalProperties", false}, {"properties", actions}};
}

ordered_json ChoiceType(const PolicyKey& key) {
  ordered_json names = ordered_json::array();
  for (int64_t i = 0; !ChoiceName(key.choices, i).empty(); ++i) names.push_back(ChoiceName(key.choices, i));
  return {{"enum", names}};
}

ordered_json ContainerType() {
  const ordered_json text = {{"type", "string"}, {"minLength", 1}};
  const ordered_json properties = {{"image", text},
                                   {"arguments", {{"type", "array"}, {"items", text}}},
                                   {"gpu_passthrough", {{"type", "boolean"}}},
                                   {"ipc", {{"type", "string"}}}};
  return {{"type", "object"},
          {"required", ordered_json::array({"image"})},
          {"additionalProperties", false},
          {"properties", properties}};
}

ordered_json ValueType(const PolicyKey& key) {
  ordered_json generations(std::vector<std::string_view>(kGpuGenerations.begin(), kGpuGenerations.end()));
  switch (key.type) {
    case KeyType::kBool: return {{"type", "boolean"}};
    case KeyType::kInt: return IntegerType(key);
    case KeyType::kFloat: return {{"type", "number"}, {"minimum", key.min}, {"maximum", key.max}};
    case KeyType::kPath: return {{"type", "string"}, {"minLength", 1}};
    case KeyType::kOptionalPath: return {{"type", "string"}};
    case KeyType::kAddress: return {{"type", "string"}, {"pattern", "^$|^(.+:)?[0-9]{1,5}$"}};
    case KeyType::kChoice: return ChoiceType(key);
    case KeyType::kModes:
      return {{"anyOf",
               ordered_json::array(
                   {ChoiceType(key), ordered_json{{"type", "object"}, {"additionalProperties", ChoiceType(key)}}})}};
    case KeyType::kContainers: return {{"type", "object"}, {"additionalProperties", ContainerType()}};
    case KeyType::kNames:
    case KeyType::kSources: return NameList();
    case KeyType::kPublicKeys:
      return {{"type", "array"}, {"items", {{"type", "string"}, {"pattern", "^[0-9a-f]{64}$"}}}, {"uniqueItems", true}};
    case KeyType::kIntList: return {{"type", "array"}, {"items", IntegerType(key)}, {"uniqueItems", true}};
    case KeyType::kLocks:
      return {{"type", "object"}, {"additionalProperties", {{"type", ordered_json::array({"string", "null"})}}}};
    case KeyType::kRules: return {{"type", "array"}, {"items", RuleType()}};
    case KeyType::kSmRanges:
      return {{"type", "object"},
              {"propertyNames", {{"pattern", "^[0-9]{2,4}(-[0-9]{2,4})?$"}}},
              {"additionalProperties", {{"enum", generations}}}};
    case KeyType::kGenerations:
      return {
          {"type", "object"}, {"propertyNames", {{"enum", generations}}}, {"additionalProperties", IntegerType(key)}};
  }
  return {};
}

}  // namespace

std::string RenderDefaultPolicy() {
  std::string out =
      "# Every key of layerzero.yaml with its default. Made from the key table (src/policy/keys.cpp).\n"
      "# Copy what you change.\n";
  std::string section;
  for (const PolicyKey& key : PolicyKeys()) {
    const NameParts name = Split(key.name);
    if (name.section != section) out += "\n" + name.section + ":\n";
    section = name.section;
    const std::string indent = section.empty() ? "" : "  ";
    out += indent + "# " + std::string(key.doc) + "\n";
    out += indent + name.leaf + ": " + YamlText(DefaultValue(key)) + "\n";
  }
  return out;
}

std::string RenderPolicySchema() {
  ordered_json properties = ordered_json::object();
  for (const PolicyKey& key : PolicyKeys()) {
    ordered_json type = ValueType(key);
    type["default"] = ordered_json::parse(Dump(DefaultValue(key)));
    type["description"] = std::string(key.doc) + (key.process_wide ? " (set for the whole process)" : "");
    const NameParts name = Split(key.name);
    if (name.section.empty()) {
      properties[name.leaf] = std::move(type);
      continue;
    }
    ordered_json& section = properties[name.section];
    section["type"] = "object";
    section["additionalProperties"] = false;
    section["properties"][name.leaf] = std::move(type);
  }
  const ordered_json schema = {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
                               {"title", "layerzero.yaml"},
                               {"description", "Policy of LayerZero. Made from src/policy/keys.cpp."},
                               {"type", "object"},
                               {"additionalProperties", false},
                               {"properties", properties}};
  return schema.dump(2) + "\n";
}

std::string RenderPolicyTable() {
  std::string out = "| key | default | value | what it does |\n|---|---|---|---|\n";
  for (const PolicyKey& key : PolicyKeys()) {
    out += "| `" + std::string(key.name) + "` | `" + YamlText(DefaultValue(key)) + "` | " + WantedText(key) + " | " +
           std::string(key.doc) + (key.process_wide ? "; set for the whole process" : "") + " |\n";
  }
  return out;
}

}  // namespace lz
