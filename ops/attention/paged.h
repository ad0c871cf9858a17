// attention.{standard,gqa}.decode.paged: one query per sequence over a paged cache with a CSR page list.
//
// Sequence s owns pages kv_indices[kv_indptr[s] .. kv_indptr[s+1]); all are full except the last, which has
// kv_last_page_len[s] entries. A cache in (pages, h_kv, page_size, d) order is passed as a permuted view.
#pragma once

#include "ops/common/attention.h"

namespace lz::ops::attention_paged {

enum Tensor {
  kQ,
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
enum Axis { kB, kHQ, kDQK, kPages, kPageSize, kHKV, kDV, kNumIndices };

inline constexpr auto kStandard = std::to_array<Condition>({{"group", Rel::kEq, 1}});
inline constexpr auto kVariants = std::to_array<Variant>({
    {"attention.standard.decode.paged", kStandard},
    {"attention.gqa.decode.paged"},
});

inline constexpr auto kParams = std::to_array<Param>({
    TensorParam("q", "b, h_q, d_qk", kFloats, "one query per sequence, the last position"),
    attention::KCache(),
    attention::VCache(),
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
    {.name = "output", .shape = "b, h_q, d_v", .dtype = "q", .doc = "weighted values"},
    attention::Lse("b, h_q"),
});
inline constexpr auto kAliases = std::to_array<std::string_view>({"attention.paged"});
inline constexpr auto kDerived = std::to_array<DerivedFact>({{"group", "h_q / h_kv"}});

inline Status Canonicalize(BoundArgs& args) {
  LZ_RETURN_IF_ERROR(attention::CheckScales(args.tensors[kPagedKCache], args.tensors[kKScale], args.tensors[kVScale]));
  LZ_RETURN_IF_ERROR(attention::CheckHeads("paged_k_cache", args.axes[kHQ], args.axes[kHKV]));
  LZ_RETURN_IF_ERROR(attention::ResolveScale("sm_scale", args.axes[kDQK], args.scalars[kSmScale]));
  LZ_RETURN_IF_ERROR(attention::CheckWindowLeft(args.scalars[kWindowLeft]));
  return attention::ResolveSoftcap(args.scalars[kSoftcap]);
}

inline constexpr Contract kContract = {
    .name = "paged_decode_attention",
    .summary = "Decode attention over a paged cache whose pages are listed in CSR form.",
    .definition =
        "With n_s = kv_indptr[s+1] - kv_indptr[s] pages, sequence s has the length L = (n_s - 1) page_size + "
        "kv_last_page_len[s] (0 without pages, whatever kv_last_page_len says). Key j < L is in page "
        "kv_indices[kv_indptr[s] + j / page_size], slot j % page_size. The query is at position L - 1 and sees keys j "
        ">= L - 1 - window_left, all with -1; logits, softcap, sinks, empty rows and lse as in `attention`. Keys and "
        "values of KV head h are the cache's values times k_scale[h] and v_scale[h], which are finite; an int8 cache "
        "must have both. Unused slots and pages are never read, whatever they hold. Index data is valid if kv_indptr "
        "starts at 0, never decreases and ends at most at the number of indices, every listed page that holds a "
        "visible key exists, and 0 <= kv_last_page_len <= page_size where there are pages; on invalid index data the "
        "reference fails with code 1 and writes nothing, other kernels may do the same or stay within the tensors.",
    .source = "arXiv:1706.03762, eq. 1, over paged storage (arXiv:2309.06180)",
    .replaces = "gathering the pages, then torch.nn.functional.scaled_dot_product_attention",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
    .derived = kDerived,
    .numerics_classes = attention::kNumericsClasses,
    .canonicalize = &Canonicalize,
    .aliases = kAliases,
};

}  // namespace lz::ops::attention_paged
