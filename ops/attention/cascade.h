// attention.{standard,gqa}.decode.cascade: one query per sequence over keys that all sequences share (a common prefix)
// and the sequence's own paged suffix.
#pragma once

#include "ops/common/attention.h"

namespace lz::ops::attention_cascade {

enum Tensor {
  kQuery,
  kSharedK,
  kSharedV,
  kPagedKCache,
  kPagedVCache,
  kKVIndptr,
  kKVIndices,
  kKVLastPageLen,
  kSinks,
  kAlibiSlopes,
  kKScale,
  kVScale,
  kOutput,
  kLse
};
enum Scalar { kSmScale, kWindowLeft, kSoftcap, kReturnLse };
enum Axis { kB, kHQ, kDQK, kNShared, kHKV, kDV, kPages, kPageSize, kNumIndices };

inline constexpr auto kStandard = std::to_array<Condition>({{"group", Rel::kEq, 1}});
inline constexpr auto kVariants = std::to_array<Variant>({
    {"attention.standard.decode.cascade", kStandard},
    {"attention.gqa.decode.cascade"},
});

inline constexpr auto kParams = std::to_array<Param>({
    TensorParam("query", "b, h_q, d_qk", kFloats, "one query per sequence, the last position"),
    TensorParam("shared_k", "n_shared, h_kv, d_qk", attention::kScaledCacheDTypes, "keys of the common prefix"),
    SameDType(
        TensorParam("shared_v", "n_shared, h_kv, d_v", attention::kScaledCacheDTypes, "values of the common prefix"),
        "shared_k"),
    SameDType(attention::KCache(), "shared_k"),
    SameDType(attention::VCache(), "shared_k"),
    attention::KVIndptr(),
    attention::KVIndices(),
    attention::KVLastPageLen(),
    attention::Scale("sm_scale"),
    attention::WindowLeft(),
    attention::SoftcapParam(),
    attention::Sinks(),
    attention::AlibiSlopes(),
    attention::KScale(),
    attention::VScale(),
    attention::ReturnLse(),
});
inline constexpr auto kOutputs = std::to_array<Output>({
    {.name = "output", .shape = "b, h_q, d_v", .dtype = "query", .doc = "weighted values"},
    attention::Lse("b, h_q"),
});
inline constexpr auto kDerived = std::to_array<DerivedFact>({{"group", "h_q / h_kv"}});

inline Status Canonicalize(BoundArgs& args) {
  LZ_RETURN_IF_ERROR(attention::CheckScales(args.tensors[kPagedKCache], args.tensors[kKScale], args.tensors[kVScale]));
  LZ_RETURN_IF_ERROR(attention::CheckHeads("shared_k", args.axes[kHQ], args.axes[kHKV]));
  LZ_RETURN_IF_ERROR(attention::ResolveScale("sm_scale", args.axes[kDQK], args.scalars[kSmScale]));
  LZ_RETURN_IF_ERROR(attention::CheckWindowLeft(args.scalars[kWindowLeft]));
  return attention::ResolveSoftcap(args.scalars[kSoftcap]);
}

inline constexpr Contract kContract = {
    .name = "cascade_decode_attention",
    .summary = "Decode attention over a prefix that all sequences share and a paged suffix of each, merged.",
    .definition =
        "The keys of sequence s are the n_shared shared ones, then the L of its pages (pages, L, validity and the "
        "result of invalid index data as in `paged_decode_attention`). The query is at position n_shared + L - 1; "
        "window_left, softcap, sinks, alibi_slopes, empty rows and lse as there, k_scale and v_scale too, those of "
        "prefix and pages alike, so the result is that of one attention over both parts: a kernel may attend to each "
        "and merge as `merge_attention` does. A prefix of several levels is one call per level with return_lse and "
        "`merge_attention`. No attn_mask: decode sees its whole past",
    .source = "arXiv:2309.06180 (shared prefix), merging as in arXiv:2307.08691, section 2.3",
    .replaces = "joining prefix and pages, then torch.nn.functional.scaled_dot_product_attention",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
    .derived = kDerived,
    .numerics_classes = attention::kNumericsClasses,
    .canonicalize = &Canonicalize,
};

}  // namespace lz::ops::attention_cascade
