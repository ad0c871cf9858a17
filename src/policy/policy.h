// 3 policy: what is allowed. An immutable snapshot made of layers (lowest first: default, user file, project file,
// environment, code, scope); every key of layerzero.yaml is read and range-checked; mistakes are reported with
// their line.
//   auto policy = ParsePolicy({{.name = "layerzero.yaml", .yaml = text}});
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/reason.h"
#include "core/status.h"

namespace lz {

// One condition of a rule, on a field that constraint rows can name too. `field` is as written; aliases such as
// head_dim, seq_len, batch_size, num_heads, sm are resolved per operation (see PolicyFieldNames).
struct RuleCondition {
  std::string field;
  Rel rel = Rel::kEq;   // kEq, kNe, kGe, kGt, kLe, kLt
  int64_t operand = 0;  // booleans 0 and 1; sm 9.0 = 90, driver 580.65 = 580065, CUDA 13.0 = 13000
  std::string text;     // a name or a glob over names ("bfloat16", "float*", "hopper"); empty: `operand` is used
};

// A rule applies if all its conditions hold. A list in the file (any of) has become one Rule per alternative.
struct Rule {
  std::string operation = "*";  // glob over operation ids
  std::vector<RuleCondition> conditions;
  // Globs over kernel ids or, without a dot, sources.
  std::vector<std::string> prefer, avoid, deny, allow;  // in `prefer` the first is the most preferred
  std::string lock;                                     // a kernel id; empty: none
  std::string origin;                                   // "layerzero.yaml:12"
};

// devices.sm_to_generation: `first` to `last`, both included.
struct SmRange {
  int64_t first = 0;
  int64_t last = 0;
  std::string generation;  // of kGpuGenerations
};

// The values that selection reads. policy/facts.h has those that rows compare ("policy.strict_mode").
struct Policy {
  bool enabled = true;
  bool fallback_enabled = true;
  bool explain_enabled = true;
  bool allow_adaptation = true;
  bool log_selections = false;
  bool log_json = false;
  bool deterministic = false;
  bool strict_mode = false;
  bool debug = false;
  bool graph_strict_mode = false;
  bool default_graph_safe = false;
  double prefer_tolerance = 0.05;  // a preferred source wins within this fraction of the best time
  int64_t memory_headroom_mb = 1024;
  double memory_block_fraction = 0.8;  // fraction of free memory that one workspace may take
  std::vector<int64_t> layout_head_counts;
  double layout_warn_interval_s = 60;
  int64_t cache_max_size = 10000;
  bool cache_enabled = true;
  bool cache_deduplication = true;
  double cache_ttl_seconds = 0;
  bool perfdb_enabled = true;
  std::string perfdb_path;  // file; empty: perfdb.sqlite in cache_dir
  bool metrics_enabled = false;
  std::string metrics_listen, metrics_file;  // empty: none
  double metrics_interval_s = 15;
  bool trace_opentelemetry = false;
  bool trace_nvtx = false;
  bool hold_numerics = false;
  bool plan_mode = false;  // lz.solve joins neighboring operations by cost
  std::string table;       // file of the dispatch table; empty: none
  int64_t health_failures = 3;
  double health_retry_s = 30;
  int64_t health_error_budget = 100;
  bool health_persist = true;
  double health_shadow_rate = 0;   // fraction of calls
  std::string health_keep_inputs;  // folder; empty: none are kept
  std::vector<std::string> prefer_sources, avoid_sources, allow_sources;
  std::vector<std::string> forbid_numerics;
  int64_t tp_size = 1;
  bool require_tp_invariant = false;
  std::string reduction_order = "any", kv_strategy = "any", kv_layout = "any";  // of kReductionOrders, ...
  std::vector<std::string> kv_dtypes, quant_formats;                            // allowed ones; empty: all
  std::map<std::string, std::string> locks;  // operation id, flat name or alias -> kernel id; read through LocksFor
  std::vector<Rule> rules;                   // those of the highest layer first, then in the file's order
  std::vector<SmRange> sm_to_generation;     // disjoint, ascending
  std::map<std::string, int64_t> generation_to_tc_gen;
  std::string cache_dir;                          // begins with "~/" only where no home folder is known
  std::map<std::string, std::string> settings;    // every key ("section.key") -> its value as JSON, defaults included
  std::map<std::string, std::string> origins;     // every key, and "locks.<name>" -> "default", "layerzero.yaml:12"
  std::map<std::string, std::string> lock_names;  // every lock that a layer sets or removes -> where
  std::map<std::string, int> lock_layers;         // lock name -> index of its layer: the higher one wins
  uint64_t selection_hash = 0;  // hash of the values that decide selections (DecidesSelection), without tp.size
  uint64_t hash = 0;  // hash of every value, not of paths, layer names and lines: equal content, equal hash, in
                      // any process
  bool allow_jit_compile = false;
  bool jit_fail_on_no_fallback = true;
};

// False for keys that never change which kernel is selected: where files are, what is logged, how failures are handled.
bool DecidesSelection(std::string_view key);

// A lock that covers an operation.
struct LockMatch {
  std::string name;    // as written
  std::string kernel;  // kernel id
  bool group = false;  // the name covers more than the operation ("attention"): locks only what the kernel implements
};
// Locks for one operation, in order of precedence: of the highest layer, then the longest name. `names`: its id, flat
// name and aliases. Dots and case do not matter: LAYERZERO_LOCK_NORM_RMS is norm.rms, ..._LOCK_ATTENTION everything
// below it.
std::vector<LockMatch> LocksFor(const Policy& policy, std::span<const std::string_view> names);

// True if a lock of this name covers the operation.
bool LockCovers(std::string_view lock, std::span<const std::string_view> names);
// The form in which locks are compared: "attention.causal" and LAYERZERO_LOCK_ATTENTION_CAUSAL are one name.
std::string NormalLockName(std::string_view name);

// The fields that a rule's field name can refer to, most specific first ("head_dim": d, d_qk); a rule uses the first
// that the operation has. Empty: the name itself is the field.
std::span<const std::string_view> PolicyFieldNames(std::string_view name);

// The source of one layer. JSON is YAML: code and scopes pass JSON.
struct PolicyLayer {
  std::string name;  // in messages: a path, "environment", "lz.configure"
  std::string yaml;
  bool is_scope = false;  // layer of single calls: keys of the whole process are refused
};

// Later layers win. Lists and maps of a later layer replace those of an earlier one; its rules come before theirs, its
// locks are added to theirs (null unlocks), and what it prefers is no longer avoided (and the other way round). Pure
// and thread-safe; a mistake is a kConfig status that names layer, line and key.
Result<Policy> ParsePolicy(std::span<const PolicyLayer> layers);

// LAYERZERO_* of `environment` (name, value) as a layer; an unknown variable is a ConfigError.
Result<PolicyLayer> EnvironmentLayer(std::span<const std::pair<std::string, std::string>> environment);

// LAYERZERO_LIBRARIES, "openblas=libopenblas.so.0,onednn=/opt/lib/libdnnl.so.3", as {source: path}; empty if it is
// malformed, which EnvironmentLayer reports.
std::map<std::string, std::string, std::less<>> NamedLibraries();

// The layers of this process: user file, project file (`project`, else LAYERZERO_CONFIG, else layerzero.yaml in the
// working directory; only the last may be missing), environment. This function and NamedLibraries are the library's
// only readers of the environment, but for HOME (values.h). The first layer has the default cache_dir with ~ resolved.
Result<std::vector<PolicyLayer>> ProcessLayers(std::string project = {});

// The policy as JSON: every key, its value and the layer that set it.
std::string PolicyJson(const Policy& policy);

// "*" and "?" as in file names; the whole text must match.
bool GlobMatch(std::string_view pattern, std::string_view text);

}  // namespace lz
