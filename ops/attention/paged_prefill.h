// attention.{standard,gqa}.prefill.paged: packed queries of several sequences over a paged cache with a CSR page list.
//
// The queries of sequence s are rows qo_indptr[s] up to qo_indptr[s+1], its last positions; its keys, including those
// of these rows, are in the cache. Pages as in ops/attention/paged.h.
#pragma once

#include "ops/common/attention.h"

namespace lz::ops::attention_paged_prefill {

enum Tensor {
  kQuery,
  kPagedKCache,
  kPagedVCache,
  kQOIndptr,
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
enum Scalar { kSmScale, kCausal, kWindowLeft, kSoftcap, kReturnLse };
enum Axis { kTotalQ, kHQ, kDQK, kPages, kPageSize, kHKV, kDV, kNumIndices, kB };

inline constexpr auto kStandard = std::to_array<Condition>({{"group", Rel::kEq, 1}});
inline constexpr auto kVariants = std::to_array<Variant>({
    {"attention.standard.prefill.paged", kStandard},
    {"attention.gqa.prefill.paged"},
});

inline constexpr auto kParams = std::to_array<Param>({
    TensorParam("query", "total_q, h_q, d_qk", kFloats, "packed queries, the last positions of each sequence"),
    attention::KCache(),
    attention::VCache(),
    IndexTensor("qo_indptr", "b + 1", "first query of each sequence, then the end"),
    attention::KVIndptr(),
    attention::KVIndices(),
    attention::KVLastPageLen(),
    attention::Scale("sm_scale"),
    KeywordOnly(Bool("causal", true, "mask keys after the row's position")),
    attention::WindowLeft(),
    attention::SoftcapParam(),
    attention::Sinks(),
    attention::AlibiSlopes(),
    attention::KScale(),
    attention::VScale(),
    attention::ReturnLse(),
});
inline constexpr auto kOutputs = std::to_array<Output>({
    {.name = "output", .shape = "total_q, h_q, d_v", .dtype = "query", .doc = "weighted values"},
    attention::Lse("total_q, h_q"),
});
inline constexpr auto kDerived = std::to_array<DerivedFact>({{"group", "h_q / h_kv"}});

inline Status Canonicalize(BoundArgs& args) {
  LZ_RETURN_IF_ERROR(attention::CheckScales(args.tensors[kPagedKCache], args.tensors[kKScale], args.tensors[kVScale]));
  LZ_RETURN_IF_ERROR(attention::CheckHeads("paged_k_cache", args.axes[kHQ], args.axes[kHKV]));
  LZ_RETURN_IF_ERROR(attention::ResolveScale("sm_scale", args.axes[kDQK], args.scalars[kSmScale]));
  LZ_RETURN_IF_ERROR(attention::CheckWindowLeft(args.scalars[kWindowLeft]));
  return attention::ResolveSoftcap(args.scalars[kSoftcap]);
}

inline constexpr Contract kContract = {
    .name = "paged_prefill_attention",
    .summary = "Attention of packed queries over a paged cache whose pages are listed in CSR form.",
    .definition =
        "Pages, the length L of each sequence, k_scale and v_scale as in `paged_decode_attention`. Row i of the n "
        "queries of a sequence is at position p = i + L - n; with window_left it sees keys p - window_left <= j <= p; "
        "causal, softcap, sinks, alibi_slopes, empty rows and lse as in `attention`. Queries of no sequence (after "
        "the last offset) have output 0 and lse -inf. There is no attn_mask: a mask of one shape for all does not fit "
        "sequences of different lengths. Unused slots and pages, and pages that no row sees, are never read. Index "
        "data is valid if both offset tensors start at 0, never decrease and end at most at the number of queries and "
        "indices, 0 <= kv_last_page_len <= page_size where there are pages, and the pages of every visible key exist; "
        "on invalid index data the reference fails with code 1 and writes nothing, other kernels may do the same or "
        "stay within the tensors",
    .source = "arXiv:1706.03762, eq. 1, over paged storage (arXiv:2309.06180)",
    .replaces = "gathering the pages, then a loop of torch.nn.functional.scaled_dot_product_attention",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
    .derived = kDerived,
    .numerics_classes = attention::kNumericsClasses,
    .canonicalize = &Canonicalize,
};

}  // namespace lz::ops::attention_paged_prefill
