// Every fact that a kernel of a descriptor may declare, and its effect in this version. `lz.register_kernel` takes the
// same names. Each fact has one line: scripts read this table, and `_layerzero.descriptor_facts()` returns it.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace lz {

enum class FactUse : uint8_t {
  kIdentity,     // identifies the kernel, its library or its function
  kRule,         // rows that refuse calls
  kScore,        // a term of the score
  kReport,       // shown by list_kernels, explain or doctor
  kUnsupported,  // only null, false, 0 and empty values are accepted; any other value is an error
};

struct Fact {
  std::string_view name;
  FactUse use;
  std::string_view effect;
};

// clang-format off
inline constexpr auto kFacts = std::to_array<Fact>({
    {"kernel_id", FactUse::kIdentity, "the kernel's id, provider first"},
    {"version", FactUse::kIdentity, "measured records of another version do not count"},
    {"source", FactUse::kIdentity, "name of the provider in policies"},
    {"platform", FactUse::kRule, "device.platform"},
    {"adapter", FactUse::kIdentity, "the Python function that is called"},
    {"also_operations", FactUse::kIdentity, "further operations with the same rows"},
    {"requires", FactUse::kRule, "NOT_INSTALLED without these modules"},
    {"notes", FactUse::kReport, "free text, shown by list_kernels"},
    {"dtypes", FactUse::kRule, "dtype of the first tensor"},
    {"supported_dtypes", FactUse::kRule, "another name of dtypes"},
    {"requires_dtype", FactUse::kRule, "the one dtype of the first tensor"},
    {"supports_bfloat16", FactUse::kRule, "adds bfloat16 to dtypes"},
    {"supports_fp8", FactUse::kRule, "adds both FP8 formats to the quantized formats, or to dtypes if there are none"},
    {"supports_int8", FactUse::kRule, "adds int8 to the quantized formats, or to dtypes if there are none"},
    {"supports_mxfp4", FactUse::kRule, "adds mxfp4 to the quantized formats"},
    {"supports_nvfp4", FactUse::kRule, "adds nvfp4 to the quantized formats"},
    {"produces_dtype", FactUse::kUnsupported, "the contract says the result's dtype"},
    {"supported_quant_dtypes", FactUse::kRule, "format of the quantized tensor"},
    {"quantization_requires_scales", FactUse::kRule, "every optional scale must be given"},
    {"quantization_scale_granularity", FactUse::kRule, "per_tensor: scales of one element"},
    {"quantization_zero_point", FactUse::kRule, "takes zero_point"},
    {"requires_packed_weights", FactUse::kRule, "packed must be given"},
    {"supports_prepack", FactUse::kUnsupported, "prepacking is an operation of its own"},
    {"requires_layouts", FactUse::kRule, "layout of the call"},
    {"produces_layout", FactUse::kRule, "must be the layout of the call, which is that of the result"},
    {"supports_kv_cache_layouts", FactUse::kRule, "layout of the cache's pages"},
    {"supports_kv_cache_dtypes", FactUse::kRule, "dtype of the caches"},
    {"supports_kv_strategies", FactUse::kRule, "policy.kv_cache.strategy"},
    {"min_sm", FactUse::kRule, "device.sm"},
    {"max_sm", FactUse::kRule, "device.sm"},
    {"supported_generations", FactUse::kRule, "device.generation"},
    {"requires_tensor_core_gen", FactUse::kRule, "device.tensor_core_generation"},
    {"instruction_set", FactUse::kRule, "device.instruction_sets"},
    {"cpu_isa", FactUse::kRule, "device.isa"},
    {"min_driver_version", FactUse::kRule, "device.driver_version"},
    {"min_cuda_version", FactUse::kRule, "device.cuda_version"},
    {"min_head_dim", FactUse::kRule, "d_qk and d_v"},
    {"max_head_dim", FactUse::kRule, "d_qk and d_v"},
    {"head_dim_multiple", FactUse::kRule, "d_qk and d_v"},
    {"head_dims", FactUse::kRule, "d_qk and d_v"},
    {"equal_head_dims", FactUse::kRule, "d_qk - d_v"},
    {"max_seq_len", FactUse::kRule, "lengths of queries and keys"},
    {"supports_gqa", FactUse::kRule, "group"},
    {"gqa_groups", FactUse::kRule, "group"},
    {"supports_causal", FactUse::kRule, "causal"},
    {"supports_attn_mask", FactUse::kRule, "attn_mask.given"},
    {"supported_attn_mask_types", FactUse::kRule, "attn_mask.dtype"},
    {"supports_dropout", FactUse::kRule, "dropout_p.given"},
    {"supports_scale", FactUse::kRule, "scale.given"},
    {"supports_grad", FactUse::kRule, "requires_grad"},
    {"accepts", FactUse::kRule, "optional parameters that may be given"},
    {"masked_v_nan", FactUse::kRule, "policy.strict_mode"},
    {"requires_last_dim_stride1", FactUse::kRule, "strides of every tensor"},
    {"requires_contiguous", FactUse::kRule, "strides of every tensor"},
    {"requires_aligned", FactUse::kRule, "alignment of tensors"},
    {"is_cuda_graph_safe", FactUse::kRule, "capturing"},
    {"shape_sensitive_graph_safety", FactUse::kUnsupported, "a capture is valid for its shapes"},
    {"deterministic", FactUse::kRule, "policy.deterministic"},
    {"reference", FactUse::kScore, "is selected if no other kernel is admissible"},
    {"numerics", FactUse::kRule, "policy.forbid_numerics, if it is a class of the operation"},
    {"grid_layout", FactUse::kRule, "axes of the launch grid"},
    {"constraints", FactUse::kRule, "any field of the operation"},
    {"workspace_bytes", FactUse::kRule, "memory headroom of the policy"},
    {"priority", FactUse::kScore, "orders kernels without measurements"},
    {"preferences", FactUse::kScore, "the priority of some calls: the first whose conditions hold"},
    {"transform_cost_hint", FactUse::kScore, "additional points for calls whose tensors are converted"},
    {"fuses_ops", FactUse::kUnsupported, "a call is one operation: nothing is fused with its neighbors"},
    {"tp_invariance", FactUse::kRule, "policy.tp.size, .require_tp_invariant and .reduction_order"},
    {"jit", FactUse::kRule, "JIT_DISABLED until it was compiled for such calls"},
    {"supports_offsets", FactUse::kUnsupported, "a constraint on return_offsets says it"},
    {"supports_normalizers", FactUse::kUnsupported, "a kernel is proven for each tokenizer"},
    {"supports_pretokenizers", FactUse::kUnsupported, "a kernel is proven for each tokenizer"},
    {"tokenizer_ids", FactUse::kUnsupported, "a kernel is proven for each tokenizer"},
    {"vocab_hashes", FactUse::kUnsupported, "a kernel is proven for each tokenizer"},
});
// clang-format on

inline constexpr std::array<std::string_view, 5> kFactUseNames = {"identity", "rule", "score", "report", "unsupported"};

}  // namespace lz
