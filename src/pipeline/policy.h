// 3 policy: what is allowed. An immutable snapshot made of layers (lowest first: default, user file, project file,
// environment, code, scope); every key of layerzero.yaml is read and range-checked, with the line of a mistake.
//   auto policy = ParsePolicy({{.name = "layerzero.yaml", .yaml = text}});
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/reason.h"
#include "core/status.h"

namespace lz {

// One condition of a rule, on a field that constraint rows can name too. `field` as written; aliases such as head_dim,
// seq_len, batch_size, num_heads, sm are resolved per operation (see PolicyFieldAlias).
struct RuleCondition {
  std::string field;
  Rel rel = Rel::kEq;
  int64_t operand = 0;
  std::string text;  // a name ("bfloat16", "hopper") where the field's values have names; else empty
};

struct Rule {
  std::string operation = "*";  // glob over operation ids
  std::vector<RuleCondition> conditions;
  // Globs over kernel ids or, without a dot, sources.
  std::vector<std::string> prefer, avoid, deny, allow;
  std::string lock;  // a kernel id; empty: none
  std::string origin;  // "layerzero.yaml:12"
};

// What the selection reads. Booleans are also facts ("policy.strict_mode").
struct Policy {
  bool enabled = true;
  bool fallback_enabled = true;
  bool explain_enabled = true;
  bool allow_adaptation = true;
  bool log_selections = false;
  bool deterministic = false;
  bool strict_mode = false;
  bool debug = false;
  double prefer_tolerance = 0.05;  // a preferred source wins within this share of the best time
  int64_t memory_headroom_mb = 1024;
  int64_t cache_max_size = 10000;
  bool cache_enabled = true;
  bool cache_deduplication = true;
  double cache_ttl_seconds = 0;
  std::vector<std::string> prefer_sources, avoid_sources, allow_sources;
  std::map<std::string, std::string> locks;  // operation id, flat name or alias -> kernel id
  std::vector<Rule> rules;
  std::map<std::string, std::string> settings;  // every other key as "section.key" -> its value, defaults included
  uint64_t hash = 0;                            // of everything above
};

// Where one layer comes from. JSON is YAML: code and scopes pass JSON.
struct PolicyLayer {
  std::string name;  // in messages: a path, "environment", "lz.configure"
  std::string yaml;
};

// Later layers win. Lists and maps of a later layer replace those of an earlier one, rules are appended before them.
Result<Policy> ParsePolicy(std::span<const PolicyLayer> layers);

// LAYERZERO_* of `environment` (name, value) as a layer; a variable that is not known is a ConfigError.
Result<PolicyLayer> EnvironmentLayer(std::span<const std::pair<std::string, std::string>> environment);

// The layers of this process: user file, project file (LAYERZERO_CONFIG, else layerzero.yaml in the working directory),
// environment. The only reader of getenv in the library.
Result<std::vector<PolicyLayer>> ProcessLayers();

// The policy as JSON: every key, its value and the layer that set it.
std::string PolicyJson(const Policy& policy);

// "*" and "?" as in file names; the whole text must match.
bool GlobMatch(std::string_view pattern, std::string_view text);

}  // namespace lz
