// Merges layers into one Policy: later layers win, key by key. See policy.h; the parts
// are {keys,yaml,values}.h and rules.cpp.
#include "policy/policy.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "policy/keys.h"
#include "policy/values.h"
#include "policy/yaml.h"

namespace lz {
namespace {

using nlohmann::json;
using Kind = YamlNode::Kind;

constexpr int kDefaultLayer = -1;

// A key's winning value so far.
struct Entry {
  json value;
  std::string origin = "default";
  int layer = kDefaultLayer;
};

struct LockEntry {
  std::string kernel;
  std::string origin;
  int layer = 0;
};

// 64-bit FNV-1a. It must never change, because hashes are stored and compared between processes.
uint64_t StableHash(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (char c : text) hash = (hash ^ uint8_t(c)) * 0x100000001b3u;
  return hash;
}

class Merger {
 public:
  Merger() {
    for (const PolicyKey& key : PolicyKeys()) entries_[key.name].value = DefaultValue(key);
  }

  Status Add(const PolicySource& source, int layer) {
    Result<YamlNode> root = ReadYaml(source);
    if (!root.ok()) return root.TakeStatus();
    return AddMap(source, layer, "", *root);
  }

  Result<Policy> Finish() {
    SeparatePreferredAndAvoided();
    LZ_RETURN_IF_ERROR(CheckContainers());
    json& cache_dir = entries_["cache_dir"].value;
    cache_dir = WithHome(cache_dir);  // a layer that names one has read it so: this is for the default
    Policy policy;
    policy.lock_names = std::move(lock_names_);
    json locks = json::object(), rules = json::array();
    for (const auto& [name, lock] : locks_) {
      policy.locks[name] = lock.kernel;
      policy.lock_layers[name] = lock.layer;
      policy.origins["locks." + name] = lock.origin;
      locks[name] = lock.kernel;
    }
    for (const Rule& rule : rules_) rules.push_back(RuleToJson(rule));
    entries_["locks"].value = std::move(locks);
    entries_["rules"].value = std::move(rules);
    policy.rules = std::move(rules_);
    for (const auto& [name, entry] : entries_) {
      policy.settings[std::string(name)] = Dump(entry.value);
      policy.origins[std::string(name)] = entry.origin;
    }
    SetMembers(policy);
    policy.hash = StableHash(Canonical(policy));
    policy.selection_hash = StableHash(Canonical(policy, true));
    return policy;
  }

 private:
  Status AddMap(const PolicySource& source, int layer, const std::string& section, const YamlNode& map) {
    if (map.kind == Kind::kNull) return {};
    if (map.kind != Kind::kMap) return source.Error(map, section, "a map from key to value");
    for (size_t i = 0; i < map.keys.size(); ++i) {
      const std::string& written = map.keys[i].text;
      const std::string name = section.empty() ? written : section + "." + written;
      const bool dotted = written.find('.') != std::string::npos;
      if (section.empty() && IsPolicySection(written)) {
        LZ_RETURN_IF_ERROR(AddMap(source, layer, written, map.items[i]));
      } else if (const PolicyKey* key = FindPolicyKey(name); key != nullptr && !dotted) {
        LZ_RETURN_IF_ERROR(AddKey(source, layer, *key, map.keys[i], map.items[i]));
      } else {
        return source.Error(map.keys[i].line, section, "a known key", GotText(map.keys[i]),
                            NearestKeyFix(section, written));
      }
    }
    return {};
  }

  Status AddKey(const PolicySource& source, int layer, const PolicyKey& key, const YamlNode& name,
                const YamlNode& node) {
    if (source.is_scope && key.process_wide) {
      return source.Error(name.line, key.name, "a key that single calls can have", "one of the whole process",
                          "set it with layerzero.configure() or in layerzero.yaml");
    }
    Entry& entry = entries_[key.name];
    if (key.type == KeyType::kRules) {
      Result<std::vector<Rule>> rules = ParseRules(source, node);
      if (!rules.ok()) return rules.TakeStatus();
      rules_.insert(rules_.begin(), std::make_move_iterator(rules->begin()), std::make_move_iterator(rules->end()));
    } else {
      Result<json> value = ParseValue(source, key, node);
      if (!value.ok()) return value.TakeStatus();
      if (key.type == KeyType::kLocks) {
        AddLocks(source, layer, *value, node);
      } else {
        entry.value = std::move(*value);
      }
    }
    entry.origin = source.At(name.line);
    entry.layer = layer;
    return {};
  }

  void AddLocks(const PolicySource& source, int layer, const json& value, const YamlNode& node) {
    for (size_t i = 0; i < node.keys.size(); ++i) {
      const std::string normal = NormalLockName(node.keys[i].text);
      std::erase_if(locks_, [&](const auto& lock) { return NormalLockName(lock.first) == normal; });
      const json& kernel = value[node.keys[i].text];
      lock_names_[node.keys[i].text] = source.At(node.keys[i].line);
      if (!kernel.is_null())
        locks_[node.keys[i].text] = {kernel.get<std::string>(), lock_names_[node.keys[i].text], layer};
    }
  }

  // If one layer prefers a source and another avoids it, the later layer decides. (Within one layer both stay, and
  // avoiding is stronger.)
  void SeparatePreferredAndAvoided() {
    Entry& prefer = entries_["prefer_sources"];
    Entry& avoid = entries_["avoid_sources"];
    if (prefer.layer == avoid.layer) return;
    Entry& lower = prefer.layer < avoid.layer ? prefer : avoid;
    const Entry& higher = prefer.layer < avoid.layer ? avoid : prefer;
    json kept = json::array();
    for (const json& name : lower.value) {
      const bool named = std::find(higher.value.begin(), higher.value.end(), name) != higher.value.end();
      if (!named) kept.push_back(name);
    }
    lower.value = std::move(kept);
  }

  // A library that runs in a container has an image.
  Status CheckContainers() const {
    const Entry& modes = entries_.at("backend_isolation");
    const json& containers = entries_.at("backend_containers").value;
    for (const auto& [library, mode] : modes.value.items()) {
      if (mode != "container" || containers.contains(library) || containers.contains("default")) continue;
      return Status(StatusCode::kConfig, {.field = modes.origin + ": backend_isolation." + library,
                                          .wanted = "an image for its container",
                                          .got = "none",
                                          .fix = "set backend_containers: {" + library + ": {image: <name>}}"});
    }
    return {};
  }

  void SetMembers(Policy& policy) const {
    const auto set = [&](std::string_view name, auto& member) { entries_.at(name).value.get_to(member); };
    set("enabled", policy.enabled);
    set("fallback_enabled", policy.fallback_enabled);
    set("explain_enabled", policy.explain_enabled);
    set("allow_adaptation", policy.allow_adaptation);
    set("allow_jit_compile", policy.allow_jit_compile);
    set("log_selections", policy.log_selections);
    set("log_json", policy.log_json);
    set("deterministic", policy.deterministic);
    set("strict_mode", policy.strict_mode);
    set("debug", policy.debug);
    set("graph_strict_mode", policy.graph_strict_mode);
    set("graph.default_graph_safe", policy.default_graph_safe);
    set("prefer_tolerance", policy.prefer_tolerance);
    set("memory_headroom_mb", policy.memory_headroom_mb);
    set("memory.block_fraction", policy.memory_block_fraction);
    set("layout.head_counts", policy.layout_head_counts);
    set("layout.warn_interval_s", policy.layout_warn_interval_s);
    set("cache.max_size", policy.cache_max_size);
    set("cache.enabled", policy.cache_enabled);
    set("cache.enable_deduplication", policy.cache_deduplication);
    set("cache.entry_ttl_seconds", policy.cache_ttl_seconds);
    set("perfdb.enabled", policy.perfdb_enabled);
    set("perfdb.path", policy.perfdb_path);
    set("metrics.enabled", policy.metrics_enabled);
    set("metrics.listen", policy.metrics_listen);
    set("metrics.file", policy.metrics_file);
    set("metrics.interval_s", policy.metrics_interval_s);
    set("trace.opentelemetry", policy.trace_opentelemetry);
    set("trace.nvtx", policy.trace_nvtx);
    set("hold_numerics", policy.hold_numerics);
    set("jit.fail_on_no_fallback", policy.jit_fail_on_no_fallback);
    set("plan_mode", policy.plan_mode);
    set("table", policy.table);
    set("health.failures", policy.health_failures);
    set("health.retry_s", policy.health_retry_s);
    set("health.error_budget", policy.health_error_budget);
    set("health.persist", policy.health_persist);
    set("health.shadow_rate", policy.health_shadow_rate);
    set("health.keep_inputs", policy.health_keep_inputs);
    set("prefer_sources", policy.prefer_sources);
    set("avoid_sources", policy.avoid_sources);
    set("allow_sources", policy.allow_sources);
    set("forbid_numerics", policy.forbid_numerics);
    set("tp.size", policy.tp_size);
    set("tp.require_tp_invariant", policy.require_tp_invariant);
    set("tp.reduction_order", policy.reduction_order);
    set("kv_cache.strategy", policy.kv_strategy);
    set("kv_cache.layout", policy.kv_layout);
    set("kv_cache.dtypes", policy.kv_dtypes);
    set("quant.formats", policy.quant_formats);
    set("cache_dir", policy.cache_dir);
    set("devices.generation_to_tc_gen", policy.generation_to_tc_gen);
    for (const auto& [range, generation] : entries_.at("devices.sm_to_generation").value.items()) {
      SmRange row = ParseSmRange(range).value_or(SmRange{});
      row.generation = generation.get<std::string>();
      policy.sm_to_generation.push_back(std::move(row));
    }
    std::sort(policy.sm_to_generation.begin(), policy.sm_to_generation.end(),
              [](const SmRange& a, const SmRange& b) { return a.first < b.first; });
  }

  // The text that is hashed: every value except paths, and which lock wins if several layers have some.
  std::string Canonical(const Policy& policy, bool of_selection = false) const {
    std::string text;
    for (const PolicyKey& key : PolicyKeys()) {
      if (!IsHashed(key.type) || (of_selection && !DecidesSelection(key.name))) continue;
      text += std::string(key.name) + "=" + policy.settings.at(std::string(key.name)) + "\n";
    }
    std::vector<int> layers;
    for (const auto& [name, lock] : locks_) layers.push_back(lock.layer);
    std::sort(layers.begin(), layers.end());
    layers.erase(std::unique(layers.begin(), layers.end()), layers.end());
    if (layers.size() < 2) return text;
    for (const auto& [name, lock] : locks_) {
      const auto rank = std::lower_bound(layers.begin(), layers.end(), lock.layer) - layers.begin();
      text += "rank of " + name + "=" + std::to_string(rank) + "\n";
    }
    return text;
  }

  std::map<std::string_view, Entry> entries_;  // by the name in the key table
  std::map<std::string, LockEntry> locks_;
  std::map<std::string, std::string> lock_names_;
  std::vector<Rule> rules_;
};

}  // namespace

// tp.size is a fact that kernels' rows compare: a table that is invariant to it serves several sizes.
bool DecidesSelection(std::string_view key) {
  constexpr auto kNever = std::to_array<std::string_view>({"version", "explain_enabled", "log_selections", "log_json",
                                                           "cache_dir", "table", "plan_mode", "tp.size", "perfdb.path",
                                                           "hold_numerics", "debug", "layout.warn_interval_s"});
  constexpr auto kSections = std::to_array<std::string_view>(
      {"cache.", "metrics.", "trace.", "health.", "isolation.", "security.", "backend_"});
  return std::ranges::find(kNever, key) == kNever.end() &&
         std::ranges::none_of(kSections, [&](std::string_view section) { return key.starts_with(section); });
}

Result<Policy> ParsePolicy(std::span<const PolicyLayer> layers) {
  Merger merger;
  for (size_t i = 0; i < layers.size(); ++i) {
    LZ_RETURN_IF_ERROR(merger.Add({layers[i].name, layers[i].yaml, layers[i].is_scope}, int(i)));
  }
  return merger.Finish();
}

std::string NormalLockName(std::string_view name) {
  std::string normal(name);
  for (char& c : normal) c = c == '.' ? '_' : c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c;
  return normal;
}

bool LockCovers(std::string_view lock, std::span<const std::string_view> names) {
  const std::string normal = NormalLockName(lock);
  return std::ranges::any_of(names, [&](std::string_view written) {
    const std::string name = NormalLockName(written);
    return name == normal || name.starts_with(normal + "_");
  });
}

std::vector<LockMatch> LocksFor(const Policy& policy, std::span<const std::string_view> names) {
  struct Ranked {
    LockMatch match;
    int layer;
  };
  std::vector<Ranked> found;
  for (const auto& [name, kernel] : policy.locks) {
    if (!LockCovers(name, names)) continue;
    const bool exact = !names.empty() && NormalLockName(names[0]) == NormalLockName(name);
    const auto layer = policy.lock_layers.find(name);
    found.push_back({{name, kernel, !exact}, layer == policy.lock_layers.end() ? 0 : layer->second});
  }
  std::stable_sort(found.begin(), found.end(), [](const Ranked& a, const Ranked& b) {
    if (a.layer != b.layer) return a.layer > b.layer;
    if (a.match.group != b.match.group) return b.match.group;
    return a.match.name.size() > b.match.name.size();
  });
  std::vector<LockMatch> matches;
  for (Ranked& ranked : found) matches.push_back(std::move(ranked.match));
  return matches;
}

std::string PolicyJson(const Policy& policy) {
  json keys = json::object();
  for (const PolicyKey& key : PolicyKeys()) {
    const std::string name(key.name);
    const auto value = policy.settings.find(name);
    const auto origin = policy.origins.find(name);
    if (value == policy.settings.end() || origin == policy.origins.end()) continue;  // policy made by hand
    json row = {{"value", json::parse(value->second, nullptr, false)}, {"origin", origin->second}};
    if (key.type == KeyType::kLocks) {
      for (const auto& [operation, kernel] : policy.locks)
        row["origins"][operation] = policy.origins.at("locks." + operation);
    }
    if (key.type == KeyType::kRules) {
      for (const Rule& rule : policy.rules) row["origins"].push_back(rule.origin);
    }
    keys[name] = std::move(row);
  }
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string hash;
  for (int shift = 60; shift >= 0; shift -= 4) hash += kHex[(policy.hash >> shift) & 15];
  return Dump({{"hash", hash}, {"keys", std::move(keys)}});
}

// Remembers only the last star: at most pattern times text steps.
bool GlobMatch(std::string_view pattern, std::string_view text) {
  size_t p = 0, t = 0, star = std::string_view::npos, star_text = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      star_text = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++star_text;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace lz
