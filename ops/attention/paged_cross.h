// attention.cross.{prefill,decode}.paged: cross attention over keys and values in a paged cache with a CSR page list.
#pragma once

#include "ops/common/attention.h"

namespace lz::ops::attention_paged_cross {

enum Tensor {
  kQuery,
  kPagedKCache,
  kPagedVCache,
  kKVIndptr,
  kKVIndices,
  kKVLastPageLen,
  kSinks,
  kKScale,
  kVScale,
  kOutput,
  kLse
};
enum Scalar { kSmScale, kSoftcap, kReturnLse };
enum Axis { kB, kSQ, kHQ, kDQK, kPages, kPageSize, kHKV, kDV, kNumIndices };

inline constexpr auto kDecode = std::to_array<Condition>({{"s_q", Rel::kEq, 1}});
inline constexpr auto kVariants = std::to_array<Variant>({
    {"attention.cross.decode.paged", kDecode},
    {"attention.cross.prefill.paged"},
});

inline constexpr auto kParams = std::to_array<Param>({
    TensorParam("query", "b, s_q, h_q, d_qk", kFloats, "queries, equally many of each sequence"),
    attention::KCache(),
    attention::VCache(),
    attention::KVIndptr(),
    attention::KVIndices(),
    attention::KVLastPageLen(),
    attention::Scale("sm_scale"),
    attention::SoftcapParam(),
    attention::Sinks(),
    attention::KScale(),
    attention::VScale(),
    attention::ReturnLse(),
});
inline constexpr auto kOutputs = std::to_array<Output>({
    {.name = "output", .shape = "b, s_q, h_q, d_v", .dtype = "query", .doc = "weighted values"},
    attention::Lse("b, h_q, s_q"),
});
inline constexpr auto kDerived = std::to_array<DerivedFact>({{"group", "h_q / h_kv"}});

inline Status Canonicalize(BoundArgs& args) {
  LZ_RETURN_IF_ERROR(attention::CheckScales(args.tensors[kPagedKCache], args.tensors[kKScale], args.tensors[kVScale]));
  LZ_RETURN_IF_ERROR(attention::CheckHeads("paged_k_cache", args.axes[kHQ], args.axes[kHKV]));
  LZ_RETURN_IF_ERROR(attention::ResolveScale("sm_scale", args.axes[kDQK], args.scalars[kSmScale]));
  return attention::ResolveSoftcap(args.scalars[kSoftcap]);
}

inline constexpr Contract kContract = {
    .name = "paged_cross_attention",
    .summary = "Attention of queries over another sequence's keys and values in a paged cache; never causal.",
    .definition =
        "`cross_attention` over pages: pages, lengths, k_scale and v_scale, validity and the result of invalid index "
        "data as in `paged_decode_attention`; every query of a sequence sees all its entries. As there, unused slots "
        "and pages are never read; there is no attn_mask because the lengths define the padding. Sequences with "
        "different numbers of queries: paged_prefill_attention(causal=False) computes the same on packed queries",
    .source = "arXiv:1706.03762, section 3.2.3, over paged storage (arXiv:2309.06180)",
    .replaces = "gathering the pages, then torch.nn.functional.scaled_dot_product_attention",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
    .derived = kDerived,
    .numerics_classes = attention::kNumericsClasses,
    .canonicalize = &Canonicalize,
};

}  // namespace lz::ops::attention_paged_cross
