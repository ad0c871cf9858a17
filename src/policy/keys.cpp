// The table of every key of layerzero.yaml. A new key is one row here; `make test` then requires the rendered files.
#include "policy/keys.h"

#include <algorithm>
#include <array>
#include <vector>

#include "registry/field.h"

namespace lz {
namespace {

constexpr bool kProcessWide = true;

using Text = std::string_view;
constexpr PolicyKey Bool(Text name, Text value, Text doc, bool process_wide = false) {
  return {.name = name, .type = KeyType::kBool, .value = value, .process_wide = process_wide, .doc = doc};
}
constexpr PolicyKey Int(Text name, Text value, double min, double max, Text doc, bool process_wide = false) {
  return {.name = name,
          .type = KeyType::kInt,
          .value = value,
          .process_wide = process_wide,
          .min = min,
          .max = max,
          .doc = doc};
}
constexpr PolicyKey Float(Text name, Text value, double min, double max, Text doc, bool process_wide = false) {
  return {.name = name,
          .type = KeyType::kFloat,
          .value = value,
          .process_wide = process_wide,
          .min = min,
          .max = max,
          .doc = doc};
}
constexpr PolicyKey Choice(Text name, Text choices, Text doc) {
  return {.name = name, .type = KeyType::kChoice, .value = "\"any\"", .choices = choices, .doc = doc};
}
constexpr PolicyKey Of(KeyType type, Text name, Text value, Text doc, bool process_wide = false) {
  return {.name = name, .type = type, .value = value, .process_wide = process_wide, .doc = doc};
}

constexpr auto kKeys = std::to_array<PolicyKey>({
    Int("version", "1", 1, 1, "version of this file's format"),
    Bool("enabled", "true", "false: calls run on references only"),
    Bool("fallback_enabled", "true",
         "true: the reference serves a call that no kernel may; false: such a call is an error"),
    Bool("explain_enabled", "true", "false: explain and which raise an error"),
    Bool("allow_adaptation", "true",
         "arguments may be copied to another layout or dtype for a kernel, at a stated cost"),
    Bool("allow_jit_compile", "false", "a call may wait until its kernel is compiled; never during a capture"),
    Bool("log_selections", "false", "log each selection"),
    Bool("log_json", "false", "log lines are JSON records, with the reason of every kernel that was not selected"),
    Bool("deterministic", "false", "only kernels whose result does not change from run to run"),
    Bool("strict_mode", "false",
         "true: no copies of arguments, no guessed layouts, no kernel that hides NaN; invalid values are errors"),
    Bool("debug", "false", "check the results and memory of each kernel after it ran, and name a faulty one"),
    Bool("graph_strict_mode", "false", "a CUDA graph capture uses only kernels whose safety was proven on this device"),
    Bool("auto_tune_on_warmup", "false", "a warm-up measures the kernels of its calls, in another process",
         kProcessWide),
    Bool("hold_numerics", "false", "a kernel that replaces a failed one must have its numerics class"),
    Bool("plan_mode", "false", "lz.solve joins neighboring operations where one kernel for both is faster"),
    Bool("pipelines", "false", "new pipelines of diffusers and Transformers are kernelized (lz.kernelize)",
         kProcessWide),
    Of(KeyType::kOptionalPath, "table", "\"\"",
       "dispatch table that `layerzero solve` wrote: its kernels are chosen before scoring", kProcessWide),
    Int("memory_headroom_mb", "1024", 0, 1e9, "memory that no workspace may take, MiB"),
    Float("prefer_tolerance", "0.05", 0, 1, "a preferred source wins within this fraction of the best time"),
    Of(KeyType::kPath, "cache_dir", "\"~/.cache/layerzero\"", "directory of converted weights and measured times",
       kProcessWide),
    Of(KeyType::kSources, "prefer_sources", "[]", "libraries to prefer, the first one most"),
    Of(KeyType::kSources, "avoid_sources", "[]", "libraries to use only where nothing else is admissible"),
    Of(KeyType::kSources, "allow_sources", "[]", "the only libraries allowed; empty: all"),
    Of(KeyType::kLocks, "locks", "{}", "operation, alias or group to kernel id; skips scoring, not validity"),
    Of(KeyType::kRules, "rules", "[]", "rules for some calls only: match and actions"),

    {.name = "backend_isolation",
     .type = KeyType::kModes,
     .value = "{\"default\":\"in_process\"}",
     .process_wide = kProcessWide,
     .choices = "in_process|subprocess|container",
     .doc = "where Python kernels run: one mode for all libraries but torch, or a mode for each library"},
    Of(KeyType::kContainers, "backend_containers", "{}",
       "image, arguments, gpu_passthrough and ipc of the containers that docker or podman runs", kProcessWide),

    Of(KeyType::kNames, "forbid_numerics", "[]", "numerics classes of kernels that no call may use, as w4a8-int"),

    Int("tp.size", "1", 1, double(kMaxTpSize), "tensor-parallel size of this process's group"),
    Bool("tp.require_tp_invariant", "false", "only kernels whose results do not depend on the tensor-parallel size"),
    Choice("tp.reduction_order", kReductionOrders, "the order in which kernels add; any: each its own"),

    Choice("kv_cache.strategy", kKvStrategies, "how KV caches get memory: of KVCacheManager and of kernels"),
    Choice("kv_cache.layout", kKvLayouts, "the only layout of KV caches that calls may pass; any: all"),
    Of(KeyType::kNames, "kv_cache.dtypes", "[]", "the only dtypes of KV caches that calls may pass; empty: all"),

    Of(KeyType::kNames, "quant.formats", "[]", "the only quantized formats that calls may use; empty: all"),

    Bool("perfdb.enabled", "true", "measured times decide; false: only priorities"),
    Of(KeyType::kOptionalPath, "perfdb.path", "\"\"", "file of measured times; empty: perfdb.sqlite in cache_dir",
       kProcessWide),
    Bool("perfdb.auto_tune", "false", "measure calls without times in a process of its own while this one serves",
         kProcessWide),
    Int("perfdb.tune_samples", "20", 6, 10000, "rounds that tuning times the finalists of a call in", kProcessWide),
    Float("perfdb.sample_rate", "0", 0, 1, "fraction of calls that are timed while serving; no call waits for it",
          kProcessWide),
    Int("perfdb.min_samples", "20", 1, 1e6, "such times that one record is made of", kProcessWide),

    Int("health.failures", "3", 1, 1000, "failures in a row after which a kernel is not selected for a while",
        kProcessWide),
    Float("health.retry_s", "30", 0.01, 1e6,
          "seconds until one call tries such a kernel again; doubled after each failure", kProcessWide),
    Int("health.error_budget", "100", 0, 1e9,
        "failed runs of kernels within 10 minutes after which lz.health() asks for a restart", kProcessWide),
    Bool("health.persist", "true", "keep quarantine.json in cache_dir, and mark kernels that run for the first time",
         kProcessWide),
    Float("health.shadow_rate", "0", 0, 1, "fraction of calls whose result is compared with the reference's"),
    Of(KeyType::kOptionalPath, "health.keep_inputs", "\"\"",
       "folder for the inputs of calls that were wrong; empty: none"),

    Bool("graph.default_graph_safe", "false",
         "a capture may use kernels that say nothing about graphs; never those that say no"),
    Int("graph.warmup_iterations", "3", 1, 1000, "calls on a side stream before what LayerZero captures"),
    Float("graph.memory_delta_warning_mb", "1", 0, 1e9,
          "memory besides its results that a captured kernel may take without a warning, MiB"),

    Bool("compatibility.check_at_load", "true",
         "compare a library's build with this process's CUDA and devices before its import", kProcessWide),
    Bool("compatibility.fail_on_incompatible", "true",
         "refuse a library that does not fit; false: use it with a warning", kProcessWide),
    Of(KeyType::kOptionalPath, "compatibility.matrix_path", "\"\"",
       "file of tested and failed combinations of versions; empty: compat_matrix.json in cache_dir", kProcessWide),

    Float("isolation.timeout_s", "30", 0.001, 1e6,
          "seconds that a call may take in a worker, including the wait for its turn", kProcessWide),
    Float("isolation.start_timeout_s", "300", 0.1, 1e6, "seconds that a worker may take to start, import and test",
          kProcessWide),
    Int("isolation.arena_mb", "1024", 1, 1e6, "most memory that a worker shares with this process, MiB", kProcessWide),
    Int("isolation.memory_mb", "0", 0, 1e9, "memory that a worker may allocate, MiB; 0: no limit", kProcessWide),
    Bool("isolation.try_imports", "true",
         "import a library in another process first, once for each version: its crash is a reason", kProcessWide),

    Bool("tokenizer_cache.enable_namespace_isolation", "true",
         "a token cache keeps the texts of each model apart; false: models with equal tokenizers share them"),
    Float("tokenizer_cache.validation_rate_initial", "0.1", 0, 1,
          "fraction of the first 100 hits of an entry of a token cache that is compared with the tokenizer"),
    Float("tokenizer_cache.validation_rate_warmup", "0.01", 0, 1, "the same of the next 1000 hits"),
    Float("tokenizer_cache.validation_rate_stable", "0.001", 0, 1, "the same of all later hits"),

    {.name = "security.require_signatures",
     .type = KeyType::kChoice,
     .value = "\"none\"",
     .process_wide = kProcessWide,
     .choices = "none|plugins|all",
     .doc = "files that need a signature by a trusted key: plugins, or also descriptors, records and tables from "
            "elsewhere"},
    Of(KeyType::kPublicKeys, "security.trusted_keys", "[]", "public keys that `layerzero sign --new-key` printed",
       kProcessWide),

    Bool("cache.enabled", "true", "keep selections"),
    Int("cache.max_size", "10000", 1, 1e9, "plans kept; the least recently used is evicted first"),
    Float("cache.entry_ttl_seconds", "0", 0, 1e9, "selections expire after this time; 0: never", kProcessWide),
    Bool("cache.enable_deduplication", "true", "one selection per missed key; other calls wait for it"),

    Bool("metrics.enabled", "false",
         "count and time the runs of each kernel; `metrics.listen` and `metrics.file` turn this on too", kProcessWide),
    Of(KeyType::kAddress, "metrics.listen", "\"\"",
       "address that serves Prometheus's text, as 127.0.0.1:9464; a port alone is of 127.0.0.1", kProcessWide),
    Of(KeyType::kOptionalPath, "metrics.file", "\"\"",
       "file for metrics in Prometheus's text format, for a node exporter", kProcessWide),
    Float("metrics.interval_s", "15", 0.1, 1e6, "seconds between two writes of metrics.file", kProcessWide),

    Bool("trace.opentelemetry", "false", "a span of OpenTelemetry for each run of a kernel and each selection",
         kProcessWide),
    Bool("trace.nvtx", "false", "an NVTX range around each run of a kernel", kProcessWide),

    {.name = "layout.head_counts",
     .type = KeyType::kIntList,
     .value = "[8,12,16,32,40,64,80,96,128]",
     .min = 1,
     .max = 65536,
     .doc = "usual head counts"},
    Float("layout.warn_interval_s", "60", 0, 1e9, "seconds between two warnings about one guessed layout at one place"),

    Bool("jit.enable_background_compile", "true", "compile missing kernels of calls in a background thread",
         kProcessWide),
    Int("jit.compile_queue_max_size", "1000", 1, 1e6,
        "most kinds of calls that wait for compilation; the oldest is dropped first", kProcessWide),
    Int("jit.max_concurrent_jit", "2", 1, 1024, "most compilations at the same time, over all processes of a user",
        kProcessWide),
    Int("jit.memory_mb", "2048", 0, 1e9,
        "free memory that a compilation waits for, in addition to memory_headroom_mb, MiB", kProcessWide),
    Bool("jit.fail_on_no_fallback", "true",
         "a call that only a kernel could serve which is not compiled is an error; false: it waits"),
    Of(KeyType::kOptionalPath, "jit.manifest_path", "\"\"",
       "file of the calls that a warm-up prepares; empty: shape_manifest.json in cache_dir", kProcessWide),
    Float("jit.manifest_stale_days", "7", 0, 1e6, "days after which a warm-up from the file warns; 0: never",
          kProcessWide),
    Int("jit.cache_max_mb", "10240", 0, 1e9,
        "size of compiled kernels on disk; the least recently used goes first, MiB", kProcessWide),

    Float("memory.block_fraction", "0.8", 0, 1, "fraction of the largest free block that a workspace may take"),

    Of(KeyType::kSmRanges, "devices.sm_to_generation",
       "{\"100-199\":\"blackwell\",\"75-79\":\"turing\",\"80-88\":\"ampere\",\"89\":\"ada\",\"90-99\":\"hopper\"}",
       "compute capability (9.0 = 90) to generation, ends included", kProcessWide),
    {.name = "devices.generation_to_tc_gen",
     .type = KeyType::kGenerations,
     .value = "{\"ada\":3,\"ampere\":3,\"blackwell\":5,\"hopper\":4,\"turing\":2}",
     .process_wide = kProcessWide,
     .min = 0,
     .max = 1000,
     .doc = "generation to tensor core generation"},
});

// The plans of docs/roadmap.md: keys, and sections of which no key is read yet.
constexpr auto kRoadmap = std::to_array<Text>({
    "memory.probe_ttl_s",
    "memory.enable_defrag",
    "memory.aggressive_defrag",
    "memory.defer_defrag_until_idle",
    "memory.fragmentation_threshold",
    "memory.defrag_interval_s",
    "distributed",
    "tp.reduction_algorithm",
    "tp.tp_invariant_fallback_mode",
    "tp.synchronize_selection",
    "rolling_update",
    "blackwell",
    "quant.accuracy_priority",
    "quant.allow_format_fallback",
    "quant.warn_on_fallback",
    "quant.max_accuracy_drop_percent",
    "quant.requantization_enabled",
    "quant.accuracy_profile",
    "kv_cache.virtual_size_gb",
    "kv_cache.physical_chunk_size_mb",
    "kv_cache.enable_cpu_offload",
    "kv_cache.min_driver_version",
    "kv_cache.prefetch_distance",
    "speculative",
});

// Every fact of a policy has the key that it is named after.
constexpr bool EveryFactHasItsKey() {
  return std::ranges::all_of(kPolicyFields, [](const PolicyFieldInfo& field) {
    return std::ranges::any_of(kKeys, [&](const PolicyKey& key) { return key.name == field.name; });
  });
}
static_assert(EveryFactHasItsKey());

constexpr bool UniqueNames() {
  for (size_t i = 0; i < kKeys.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (kKeys[i].name == kKeys[j].name) return false;
    }
  }
  return true;
}
static_assert(UniqueNames());

// The number of letters to insert, delete, replace, or swap with the next one.
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    before.swap(last);
    last.swap(row);
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1), last[j] + 1, row[j - 1] + 1});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}

std::string_view Leaf(std::string_view name) { return name.substr(name.find('.') + 1); }  // npos + 1 = 0

std::string HowToWrite(std::string_view name) {
  const size_t dot = name.find('.');
  if (dot == std::string_view::npos) return "did you mean " + std::string(name) + "?";
  return "did you mean " + std::string(Leaf(name)) + " in the section " + std::string(name.substr(0, dot)) + "?";
}

}  // namespace

std::span<const PolicyKey> PolicyKeys() { return kKeys; }

const PolicyKey* FindPolicyKey(std::string_view name) {
  for (const PolicyKey& key : kKeys) {
    if (key.name == name) return &key;
  }
  return nullptr;
}

std::span<const std::string_view> PolicyRoadmap() { return kRoadmap; }

bool IsOnPolicyRoadmap(std::string_view name) {
  return std::ranges::find(kRoadmap, name) != kRoadmap.end() ||
         std::ranges::find(kRoadmap, name.substr(0, name.find('.'))) != kRoadmap.end();
}

bool IsPolicySection(std::string_view name) {
  return std::any_of(kKeys.begin(), kKeys.end(), [&](const PolicyKey& key) {
    return key.name.size() > name.size() && key.name[name.size()] == '.' && key.name.starts_with(name);
  });
}

std::string_view NearestName(std::string_view text, std::span<const std::string_view> names) {
  if (text.size() > 64) return {};
  std::string_view best;
  size_t best_distance = std::max<size_t>(1, text.size() / 3) + 1;
  for (std::string_view name : names) {
    const size_t distance = EditDistance(text, name);
    if (distance < best_distance) {
      best = name;
      best_distance = distance;
    }
  }
  return best;
}

std::string NearestKeyFix(std::string_view section, std::string_view name) {
  const std::string full = section.empty() ? std::string(name) : std::string(section) + "." + std::string(name);
  if (FindPolicyKey(full) != nullptr) return HowToWrite(full);  // written with a dot
  if (IsOnPolicyRoadmap(full)) return std::string(kNotInThisVersion);
  std::vector<std::string_view> here, everywhere;
  for (const PolicyKey& key : kKeys) {
    if (Leaf(key.name) == name) return HowToWrite(key.name);
    const std::string_view leaf = Leaf(key.name);
    const std::string_view in = key.name.substr(0, key.name.size() - leaf.size());  // "cache." or ""
    const bool same = section.empty() ? in.empty() : in.substr(0, in.size() - !in.empty()) == section;
    if (same) here.push_back(leaf);
    if (section.empty() && !in.empty() && (here.empty() || here.back() != in.substr(0, in.size() - 1))) {
      here.push_back(in.substr(0, in.size() - 1));
    }
    everywhere.push_back(leaf);
  }
  if (std::string_view near = NearestName(name, here); !near.empty()) return "did you mean " + std::string(near) + "?";
  if (std::string_view near = NearestName(name, everywhere); !near.empty()) {
    for (const PolicyKey& key : kKeys) {
      if (Leaf(key.name) == near) return HowToWrite(key.name);
    }
  }
  return {};
}

}  // namespace lz
