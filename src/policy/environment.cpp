// LAYERZERO_* variables and the files of this process as policy layers.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <system_error>

#include "base/trusted_file.h"
#include "policy/policy.h"
#include "policy/values.h"

namespace lz {
namespace {

using nlohmann::json;

constexpr std::string_view kPrefix = "LAYERZERO_";
constexpr std::string_view kLockPrefix = "LAYERZERO_LOCK_";

enum class VariableKind : uint8_t { kFlag, kInverseFlag, kVerbosity, kSources, kPath, kConfigFile, kLibraries, kHost };

struct Variable {
  std::string_view name;
  VariableKind kind;
  std::string_view key;  // key of layerzero.yaml
};

constexpr auto kVariables = std::to_array<Variable>({
    {"LAYERZERO_DISABLED", VariableKind::kInverseFlag, "enabled"},
    {"LAYERZERO_PREFER", VariableKind::kSources, "prefer_sources"},
    {"LAYERZERO_AVOID", VariableKind::kSources, "avoid_sources"},
    {"LAYERZERO_VERBOSE", VariableKind::kVerbosity, "log_selections"},
    {"LAYERZERO_DETERMINISTIC", VariableKind::kFlag, "deterministic"},
    {"LAYERZERO_DEBUG", VariableKind::kFlag, "debug"},
    {"LAYERZERO_LOG_JSON", VariableKind::kFlag, "log_json"},
    {"LAYERZERO_METRICS", VariableKind::kPath, "metrics.listen"},
    {"LAYERZERO_METRICS_FILE", VariableKind::kPath, "metrics.file"},
    {"LAYERZERO_TRACE", VariableKind::kFlag, "trace.opentelemetry"},
    {"LAYERZERO_NVTX", VariableKind::kFlag, "trace.nvtx"},
    {"LAYERZERO_PIPELINES", VariableKind::kFlag, "pipelines"},
    {"LAYERZERO_CACHE_DIR", VariableKind::kPath, "cache_dir"},
    {"LAYERZERO_CONFIG", VariableKind::kConfigFile, ""},
    {"LAYERZERO_LIBRARIES", VariableKind::kLibraries, ""},
    {"LAYERZERO_RECORD", VariableKind::kHost, ""},
});

Status Wrong(std::string_view name, std::string wanted, std::string_view got, std::string fix = {}) {
  YamlNode node{.kind = YamlNode::Kind::kScalar, .text = std::string(got)};
  return Status(StatusCode::kConfig,
                {.field = std::string(name), .wanted = std::move(wanted), .got = GotText(node), .fix = std::move(fix)});
}

std::string Lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c;
  return lower;
}

Result<bool> ParseFlag(const Variable& variable, std::string_view value) {
  const std::string text = Lower(value);
  if (text == "1" || text == "true" || text == "yes" || text == "on") return true;
  if (text == "0" || text == "false" || text == "no" || text == "off") return false;
  const bool verbosity = variable.kind == VariableKind::kVerbosity;
  if (verbosity && text == "2") return true;  // level 2 adds times, which the Python side prints
  return Wrong(variable.name, verbosity ? "0, 1 or 2" : "0 or 1", value);
}

Result<json> ParseSources(std::string_view name, std::string_view value) {
  json sources = json::array();
  for (bool more = true; more;) {
    const size_t comma = value.find(',');
    std::string_view source = value.substr(0, comma);
    while (source.starts_with(' ')) source.remove_prefix(1);
    while (source.ends_with(' ')) source.remove_suffix(1);
    if (!IsName(source, true) || source.find('.') != std::string_view::npos) {
      return Wrong(name, "library names, comma-separated", source, "as flash_attn,flashinfer");
    }
    if (std::find(sources.begin(), sources.end(), source) == sources.end()) sources.push_back(source);
    more = comma != std::string_view::npos;
    if (more) value.remove_prefix(comma + 1);
  }
  return sources;
}

Result<std::map<std::string, std::string, std::less<>>> ParseLibraries(std::string_view value) {
  std::map<std::string, std::string, std::less<>> libraries;
  for (bool more = !value.empty(); more;) {
    const size_t comma = value.find(',');
    const std::string_view entry = value.substr(0, comma);
    const size_t equals = entry.find('=');
    const std::string_view source = entry.substr(0, equals);
    if (equals == entry.npos || equals + 1 == entry.size() || !IsName(source, false) ||
        source.find('.') != source.npos) {
      return Wrong("LAYERZERO_LIBRARIES", "source=path, comma-separated", entry, "as openblas=libopenblas.so.0");
    }
    if (!libraries.emplace(source, entry.substr(equals + 1)).second) {
      return Wrong("LAYERZERO_LIBRARIES", "each source once", entry);
    }
    more = comma != std::string_view::npos;
    if (more) value.remove_prefix(comma + 1);
  }
  return libraries;
}

Status AddLock(std::string_view name, std::string_view value, json& locks) {
  const std::string operation = Lower(name.substr(kLockPrefix.size()));
  if (operation.empty() || !IsName(operation, false)) {
    return Wrong(name, "LAYERZERO_LOCK_<OPERATION>", name, "as LAYERZERO_LOCK_NORM_RMS");
  }
  if (!IsName(value, false)) return Wrong(name, "a kernel id", value);
  locks[operation] = value;
  return {};
}

Status UnknownVariable(std::string_view name) {
  if (IsOnPolicyRoadmap(Lower(name.substr(kPrefix.size())))) {
    return Wrong(name, "a known variable", name, "unset it: " + std::string(kNotInThisVersion));
  }
  std::array<std::string_view, kVariables.size() + 1> names;
  std::transform(kVariables.begin(), kVariables.end(), names.begin(), [](const Variable& v) { return v.name; });
  names.back() = "LAYERZERO_LOCK_ATTENTION";
  const std::string_view near = NearestName(name, names);
  return Wrong(name, "a known variable", name,
               near.empty() ? "unset it" : "did you mean " + std::string(near) + "? Else unset it");
}

// The value of "section.key" in a layer.
json& At(json& layer, std::string_view key) {
  const size_t dot = key.find('.');
  if (dot == std::string_view::npos) return layer[std::string(key)];
  return layer[std::string(key.substr(0, dot))][std::string(key.substr(dot + 1))];
}

Status AddVariable(const Variable& variable, std::string_view value, json& layer) {
  switch (variable.kind) {
    case VariableKind::kFlag:
    case VariableKind::kVerbosity:
    case VariableKind::kInverseFlag: {
      Result<bool> flag = ParseFlag(variable, value);
      if (!flag.ok()) return flag.TakeStatus();
      const bool set = variable.kind == VariableKind::kInverseFlag ? !*flag : *flag;
      At(layer, variable.key) = set;
      return {};
    }
    case VariableKind::kSources: {
      Result<json> sources = ParseSources(variable.name, value);
      if (!sources.ok()) return sources.TakeStatus();
      At(layer, variable.key) = std::move(*sources);
      return {};
    }
    case VariableKind::kPath:
      if (!IsUtf8(value)) return Wrong(variable.name, "a path in UTF-8", value);
      At(layer, variable.key) = value;
      return {};
    case VariableKind::kConfigFile:       // read by ProcessLayers
    case VariableKind::kHost: return {};  // read by layerzero/tuning/workload.py
    case VariableKind::kLibraries: {      // read by NamedLibraries
      auto libraries = ParseLibraries(value);
      return libraries.ok() ? Status() : libraries.TakeStatus();
    }
  }
  return {};
}

// If the file does not exist and `required` is false, the text is empty.
Result<PolicyLayer> ReadLayer(const std::string& path, bool required, std::string fix = {}) {
  auto text = ReadTrustedFile(path, kMaxPolicyBytes);  // a longer text is refused by ParsePolicy
  if (!text.ok()) return text.TakeStatus();
  if (*text) return PolicyLayer{.name = path, .yaml = std::move(**text)};
  const int error = errno;
  if (!required && (error == ENOENT || error == ENOTDIR)) return PolicyLayer{.name = path};
  return Wrong(path, "a readable policy file", std::generic_category().message(error), std::move(fix));
}

}  // namespace

Result<PolicyLayer> EnvironmentLayer(std::span<const std::pair<std::string, std::string>> environment) {
  json layer = json::object();
  json locks = json::object();
  for (const auto& [name, value] : environment) {
    if (!name.starts_with(kPrefix)) continue;
    const auto known = std::find_if(kVariables.begin(), kVariables.end(),
                                    [wanted = std::string_view(name)](const auto& v) { return v.name == wanted; });
    if (known == kVariables.end() && !name.starts_with(kLockPrefix)) return UnknownVariable(name);
    if (value.empty()) continue;  // as if it were unset
    if (known == kVariables.end()) {
      LZ_RETURN_IF_ERROR(AddLock(name, value, locks));
    } else {
      LZ_RETURN_IF_ERROR(AddVariable(*known, value, layer));
    }
  }
  if (!locks.empty()) layer["locks"] = std::move(locks);
  return PolicyLayer{.name = "environment", .yaml = layer.empty() ? "" : Dump(layer)};
}

std::map<std::string, std::string, std::less<>> NamedLibraries() {
  const char* value = std::getenv("LAYERZERO_LIBRARIES");
  auto libraries = ParseLibraries(value ? value : "");
  return libraries.ok() ? std::move(*libraries) : std::map<std::string, std::string, std::less<>>();
}

Result<std::vector<PolicyLayer>> ProcessLayers(std::string project) {
  std::vector<std::pair<std::string, std::string>> variables;
  std::string caches, cache_dir, config;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const size_t equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    const std::string name(text.substr(0, equals)), value(text.substr(equals + 1));
    if (name == "XDG_CACHE_HOME" && value.starts_with('/')) caches = value;  // other values are ignored
    if (name == "LAYERZERO_CACHE_DIR") cache_dir = WithHome(value);
    if (name == "LAYERZERO_CONFIG") config = value;
    if (name.starts_with(kPrefix)) variables.emplace_back(name, value);
  }
  std::vector<PolicyLayer> layers;
  if (const std::string home = HomeFolder(); caches.empty() && !home.empty()) caches = home + "/.cache";
  if (!caches.empty() && IsUtf8(caches)) {
    layers.push_back({.name = "default", .yaml = Dump({{"cache_dir", caches + "/layerzero"}})});
    if (cache_dir.empty()) cache_dir = caches + "/layerzero";
  }
  if (!cache_dir.empty()) {
    Result<PolicyLayer> user = ReadLayer(cache_dir + "/config.yaml", false);
    if (!user.ok()) return user.TakeStatus();
    if (!user->yaml.empty()) layers.push_back(std::move(*user));
  }
  const bool named = !project.empty() || !config.empty();
  std::string fix = project.empty() && named ? "set LAYERZERO_CONFIG to a policy file" : "";
  if (project.empty()) project = config.empty() ? "layerzero.yaml" : config;
  Result<PolicyLayer> file = ReadLayer(project, named, std::move(fix));
  if (!file.ok()) return file.TakeStatus();
  if (!file->yaml.empty()) layers.push_back(std::move(*file));
  Result<PolicyLayer> environment = EnvironmentLayer(variables);
  if (!environment.ok()) return environment.TakeStatus();
  if (!environment->yaml.empty()) layers.push_back(std::move(*environment));
  return layers;
}

}  // namespace lz
