// The table of every key of layerzero.yaml. A new key is one row here; `make test` then asks for the rendered files.
#include "pipeline/policy_keys.h"

#include <algorithm>
#include <array>
#include <vector>

namespace lz {
namespace {

constexpr bool kBuilt = true;
constexpr bool kLater = false;
constexpr double kBig = 1e12;

using Text = std::string_view;
constexpr PolicyKey Bool(Text name, Text value, bool built, Text doc) {
  return {.name = name, .type = KeyType::kBool, .value = value, .built = built, .doc = doc};
}
constexpr PolicyKey Int(Text name, Text value, double min, double max, bool built, Text doc) {
  return {.name = name, .type = KeyType::kInt, .value = value, .built = built, .min = min, .max = max, .doc = doc};
}
constexpr PolicyKey Float(Text name, Text value, double min, double max, bool built, Text doc) {
  return {.name = name, .type = KeyType::kFloat, .value = value, .built = built, .min = min, .max = max, .doc = doc};
}
constexpr PolicyKey Choice(Text name, Text value, Text choices, bool built, Text doc) {
  return {.name = name, .type = KeyType::kChoice, .value = value, .built = built, .choices = choices, .doc = doc};
}
constexpr PolicyKey Checks(Text name, Text value, Text choices, bool built, Text doc) {
  return {.name = name, .type = KeyType::kChoiceList, .value = value, .built = built, .choices = choices, .doc = doc};
}
constexpr PolicyKey IntList(Text name, Text value, double min, double max, bool built, Text doc) {
  return {.name = name, .type = KeyType::kIntList, .value = value, .built = built, .min = min, .max = max, .doc = doc};
}
constexpr PolicyKey Of(KeyType type, Text name, Text value, bool built, Text doc) {
  return {.name = name, .type = type, .value = value, .built = built, .doc = doc};
}

constexpr auto kKeys = std::to_array<PolicyKey>({
    Int("version", "1", 1, 1, kBuilt, "version of this file's format"),
    Bool("enabled", "true", kBuilt, "false: references only"),
    Bool("fallback_enabled", "true", kBuilt, "the reference runs where no kernel is admissible; false: an error"),
    Bool("explain_enabled", "true", kBuilt, "keep the reasons and scores of each selection for explain"),
    Bool("allow_adaptation", "true", kBuilt,
         "transforms with a stated cost (layout, dtype) may make a kernel admissible"),
    Bool("log_selections", "false", kBuilt, "log each selection"),
    Bool("deterministic", "false", kBuilt, "only kernels whose result does not change from run to run"),
    Bool("strict_mode", "false", kBuilt, "no implicit transform: refuse instead"),
    Bool("debug", "false", kBuilt, "look at what each kernel did before going on, and name the one at fault"),
    Bool("plan_mode", "false", kLater, "plan several operations jointly"),
    Bool("graph_strict_mode", "false", kLater, "prove graph safety by capture and replay"),
    Bool("auto_tune_on_warmup", "false", kLater, "measure kernels while warming up"),
    Bool("pipelines", "false", kLater, "run whole blocks as one program"),
    Choice("backend_isolation", "\"in_process\"", "in_process|subprocess|container", kLater, "where backends run"),
    Int("memory_headroom_mb", "1024", 0, 1e9, kBuilt, "memory that no workspace may take, MiB"),
    Float("prefer_tolerance", "0.05", 0, 1, kBuilt, "a preferred source wins within this share of the best time"),
    Of(KeyType::kPath, "cache_dir", "\"~/.cache/layerzero\"", kBuilt, "converted weights, tokenizers, databases, logs"),
    Of(KeyType::kSources, "prefer_sources", "[]", kBuilt, "libraries to prefer, the first one most"),
    Of(KeyType::kSources, "avoid_sources", "[]", kBuilt, "libraries to use only where nothing else is admissible"),
    Of(KeyType::kSources, "allow_sources", "[]", kBuilt, "the only libraries allowed; empty: all"),
    Of(KeyType::kLocks, "locks", "{}", kBuilt, "operation, alias or group to kernel id; skips scoring, not validity"),
    Of(KeyType::kRules, "rules", "[]", kBuilt, "what holds for some calls only: match and actions"),
    Of(KeyType::kContainers, "backend_containers", "{}", kLater, "backend to image, gpu_passthrough and ipc"),

    Bool("perfdb.enabled", "true", kBuilt, "measured times decide; false: priorities alone"),
    Of(KeyType::kPath, "perfdb.path", "\"~/.cache/layerzero/perfdb.sqlite\"", kLater, "the database's file"),
    Bool("perfdb.auto_tune", "false", kLater, "measure what is not measured yet"),
    Int("perfdb.tune_samples", "20", 1, 100000, kLater, "samples of a measurement"),
    Float("perfdb.sample_rate", "0.01", 0, 1, kLater, "share of the calls that are timed online"),
    Int("perfdb.min_samples", "10", 1, 100000, kLater, "samples before a measurement counts"),

    Bool("cache.enabled", "true", kBuilt, "keep selections"),
    Int("cache.max_size", "10000", 1, 1e9, kBuilt, "selections kept, the least recently used goes first"),
    Float("cache.entry_ttl_seconds", "0", 0, 1e9, kBuilt, "selections expire after this time; 0: never"),
    Bool("cache.enable_deduplication", "true", kBuilt, "one selection for each missed key, others wait for it"),

    Bool("jit.enable_background_compile", "true", kLater, "compile off the request path"),
    Int("jit.compile_queue_max_size", "1000", 1, 1e6, kLater, "shapes waiting for the compiler"),
    Int("jit.max_concurrent_jit", "2", 1, 1024, kLater, "compilers at a time"),
    Of(KeyType::kPath, "jit.manifest_path", "\"~/.cache/layerzero/shape_manifest.json\"", kLater, "shapes to compile"),
    Int("jit.manifest_stale_days", "7", 0, 36500, kLater, "warn about an older manifest"),
    Bool("jit.fail_on_no_fallback", "true", kLater, "refuse a shape that neither is compiled nor has a fallback"),

    Float("graph.memory_delta_warning_mb", "1.0", 0, 1e9, kLater, "warn when a captured kernel allocates more, MiB"),
    Int("graph.warmup_iterations", "3", 0, 10000, kLater, "calls before a capture"),
    Bool("graph.default_graph_safe", "false", kLater, "treat a kernel that does not say so as safe to capture"),

    Of(KeyType::kPath, "compatibility.matrix_path", "\"~/.cache/layerzero/compat_matrix.json\"", kLater,
       "which backends work together"),
    Bool("compatibility.check_at_load", "true", kLater, "check backends when they load"),
    Bool("compatibility.fail_on_incompatible", "true", kLater, "refuse incompatible backends"),

    IntList("layout.head_counts", "[8,12,16,32,40,64,80,96,128]", 1, 65536, kBuilt, "usual head counts"),
    Float("layout.warn_interval_s", "60", 0, 1e9, kBuilt,
          "between two warnings of one place about one guessed layout, s"),

    Bool("tokenizer_cache.enable_namespace_isolation", "true", kLater, "entries of one tokenizer identity only"),
    Float("tokenizer_cache.validation_rate_initial", "0.1", 0, 1, kLater, "share of the first 100 hits checked"),
    Float("tokenizer_cache.validation_rate_warmup", "0.01", 0, 1, kLater, "share of the next 1000 hits checked"),
    Float("tokenizer_cache.validation_rate_stable", "0.001", 0, 1, kLater, "share of all later hits checked"),

    Float("memory.probe_ttl_s", "60", 0, 1e9, kLater, "how long the largest free block is remembered"),
    Float("memory.block_fraction", "0.8", 0, 1, kBuilt, "share of the largest free block that a workspace may take"),
    Bool("memory.enable_defrag", "false", kLater, "give cached blocks back when memory is fragmented"),
    Bool("memory.aggressive_defrag", "false", kLater, "also collect the host's garbage first"),
    Bool("memory.defer_defrag_until_idle", "true", kLater, "never during requests"),
    Float("memory.fragmentation_threshold", "null", 0, 1, kLater, "act above this score: 1 - largest / free"),
    Float("memory.defrag_interval_s", "null", 0, 1e9, kLater, "act at least this often"),

    Choice("distributed.selection_mode", "\"broadcast\"", "broadcast=rank0_broadcast|independent", kLater,
           "rank 0 selects for all, or each rank for itself"),
    Int("distributed.version_check_interval", "1000", 1, kBig, kLater, "selections between version checks"),
    Float("distributed.version_check_interval_s", "60", 0, 1e9, kLater, "seconds between version checks"),
    Choice("distributed.on_version_mismatch", "\"error\"", "error|fallback|best_effort", kLater,
           "fallback is for inference only"),
    Bool("distributed.verify_selections", "true", kLater, "compare the ranks' selections"),

    Bool("tp.require_tp_invariant", "false", kLater, "equal results for every tensor-parallel size"),
    Choice("tp.reduction_algorithm", "\"tree\"", "tree|ring|canonical", kLater, "order of reductions across ranks"),
    Choice("tp.tp_invariant_fallback_mode", "\"reference\"", "reference|error|best_effort", kLater,
           "where no invariant kernel is admissible"),
    Bool("tp.synchronize_selection", "true", kLater, "all ranks run the same kernel"),

    Checks("rolling_update.pre_update_checks",
           "[\"verify_version_consistency\",\"checkpoint_perfdb\",\"checkpoint_selection_cache\"]",
           "verify_version_consistency|checkpoint_perfdb|checkpoint_selection_cache", kLater, "before an update"),
    Bool("rolling_update.force_fallback", "true", kLater, "references while versions differ"),
    Int("rolling_update.max_concurrent_updates", "1", 1, 65536, kLater, "ranks updated at a time"),
    Checks("rolling_update.post_update_checks",
           "[\"verify_version_consistency\",\"verify_selection_consistency\",\"restore_normal_selection\"]",
           "verify_version_consistency|verify_selection_consistency|restore_normal_selection", kLater,
           "after an update"),

    Of(KeyType::kSmRanges, "devices.sm_to_generation",
       "{\"100-199\":\"blackwell\",\"75-79\":\"turing\",\"80-88\":\"ampere\",\"89\":\"ada\",\"90-99\":\"hopper\"}",
       kBuilt, "compute capability (9.0 = 90) to generation, ends included"),
    {.name = "devices.generation_to_tc_gen",
     .type = KeyType::kGenerations,
     .value = "{\"ada\":3,\"ampere\":3,\"blackwell\":5,\"hopper\":4,\"turing\":2}",
     .built = kBuilt,
     .min = 0,
     .max = 1000,
     .doc = "generation to tensor core generation"},

    Bool("blackwell.prefer_sdpa_cudnn", "true", kLater, "cuDNN's attention before the other fallbacks"),
    Bool("blackwell.allow_triton_fallback", "true", kLater, "Triton kernels as a fallback"),
    Bool("blackwell.warn_on_fa2_fallback", "true", kLater, "warn when FlashAttention 2 answers: half speed there"),

    Choice("quant.accuracy_priority", "\"balanced\"", "balanced|high|performance", kLater,
           "rank formats by accuracy or speed"),
    Bool("quant.allow_format_fallback", "true", kLater, "another format where the wanted one is not supported"),
    Bool("quant.warn_on_fallback", "true", kLater, "warn about another format"),
    Float("quant.max_accuracy_drop_percent", "3.0", 0, 100, kLater, "refuse a fallback that loses more"),
    Bool("quant.requantization_enabled", "false", kLater, "convert weights to another format"),
    {.name = "quant.accuracy_profile",
     .type = KeyType::kIntMap,
     .value = "null",
     .min = 1,
     .max = 10,
     .doc = "format to accuracy rank, for one model"},

    Choice("kv_cache.strategy", "\"virtual\"", "virtual|paged|contiguous|unified", kLater,
           "how cache memory is managed"),
    Float("kv_cache.virtual_size_gb", "64", 0, 1e6, kLater, "address space reserved on each device, GiB"),
    Float("kv_cache.physical_chunk_size_mb", "16", 0, 1e6, kLater, "memory is mapped in chunks of this size, MiB"),
    Bool("kv_cache.enable_cpu_offload", "false", kLater, "move idle sequences to host memory"),
    Of(KeyType::kText, "kv_cache.min_driver_version", "\"520.0\"", kLater, "older drivers use contiguous caches"),
    Int("kv_cache.prefetch_distance", "2", 0, 1e6, kLater, "chunks mapped ahead"),

    Bool("speculative.enabled", "false", kLater, "draft and target kernels are chosen as a pair"),
    Choice("speculative.algorithm", "\"generic\"", "generic|eagle|eagle3|medusa", kLater, "how drafts are made"),
    Int("speculative.draft_tp_size", "1", 1, 65536, kLater, "tensor-parallel size of the draft model"),
    Int("speculative.max_draft_tp_size", "1", 1, 65536, kLater, "largest size allowed for the draft model"),
    Int("speculative.num_speculative_tokens", "5", 1, 10, kLater, "tokens drafted in a step"),
    Bool("speculative.share_kv_cache", "false", kLater, "draft and target share one cache"),
    Bool("speculative.adaptive_speculation", "true", kLater, "draft fewer tokens in large batches"),
    Bool("speculative.cache_kernel_pairs", "true", kLater, "keep pairs by batch bucket"),
    IntList("speculative.batch_buckets", "[1,4,8,16,32]", 1, 1e6, kLater, "upper ends of the batch buckets"),
    Int("speculative.reduce_tokens_batch_threshold", "16", 1, 1e6, kLater, "two tokens from this batch size on"),
    Int("speculative.disable_speculation_batch_threshold", "32", 1, 1e6, kLater,
        "no speculation from this batch size on"),
    Bool("speculative.cache_invalidation_on_batch_change", "true", kLater, "select anew when the bucket changes"),
});

constexpr bool UniqueNames() {
  for (size_t i = 0; i < kKeys.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (kKeys[i].name == kKeys[j].name) return false;
    }
  }
  return true;
}
static_assert(UniqueNames());

size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
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
