// attention.{standard,gqa}.decode.pod: a batch of packed prefill sequences and a batch of decode queries over a paged
// cache in one call (prefill-on-decode), so that one kernel can fill the device with both.
#pragma once

#include "ops/common/attention.h"

namespace lz::ops::attention_pod {

enum Tensor {
  kQueryP,
  kKeyP,
  kValueP,
  kCuSeqlensQ,
  kCuSeqlensKV,
  kQueryD,
  kPagedKCache,
  kPagedVCache,
  kKVIndptr,
  kKVIndices,
  kKVLastPageLen,
  kSinks,
  kOutputP,
  kOutputD,
  kLseP,
  kLseD
};
enum Scalar { kSmScale, kCausal, kWindowLeft, kSoftcap, kReturnLse };
enum Axis { kTotalQ, kHQ, kDQK, kTotalKV, kHKV, kDV, kOffsets, kB, kPages, kPageSize, kNumIndices };

inline constexpr auto kStandard = std::to_array<Condition>({{"group", Rel::kEq, 1}});
inline constexpr auto kVariants = std::to_array<Variant>({
    {"attention.standard.decode.pod", kStandard},
    {"attention.gqa.decode.pod"},
});

inline constexpr auto kParams = std::to_array<Param>({
    TensorParam("query_p", "total_q, h_q, d_qk", kFloats, "prefill: packed queries"),
    SameDType(TensorParam("key_p", "total_kv, h_kv, d_qk", kFloats, "prefill: packed keys"), "query_p"),
    SameDType(TensorParam("value_p", "total_kv, h_kv, d_v", kFloats, "prefill: packed values"), "query_p"),
    IndexTensor("cu_seqlens_q", "offsets", "prefill: first query of each sequence, then the end"),
    IndexTensor("cu_seqlens_kv", "offsets", "prefill: first key of each sequence, then the end"),
    SameDType(TensorParam("query_d", "b, h_q, d_qk", kFloats, "decode: one query per sequence"), "query_p"),
    attention::KCache(attention::kCacheDTypes),
    attention::VCache(attention::kCacheDTypes),
    attention::KVIndptr(),
    attention::KVIndices(),
    attention::KVLastPageLen(),
    attention::Scale("sm_scale"),
    KeywordOnly(Bool("causal", true, "prefill: mask keys after the row's position")),
    attention::WindowLeft(),
    attention::SoftcapParam(),
    attention::Sinks(),
    attention::ReturnLse(),
});
inline constexpr auto kOutputs = std::to_array<Output>({
    {.name = "output_p", .shape = "total_q, h_q, d_v", .dtype = "query_p", .doc = "prefill: weighted values"},
    {.name = "output_d", .shape = "b, h_q, d_v", .dtype = "query_p", .doc = "decode: weighted values"},
    attention::Lse("total_q, h_q", "lse_p"),
    attention::Lse("b, h_q", "lse_d"),
});
inline constexpr auto kDerived = std::to_array<DerivedFact>({{"group", "h_q / h_kv"}});

inline Status Canonicalize(BoundArgs& args) {
  if (args.axes[kOffsets] < 1) {
    return attention::Invalid("cu_seqlens_q", "number of sequences + 1 offsets", "0",
                              "an empty batch is the offsets [0]");
  }
  LZ_RETURN_IF_ERROR(attention::CheckHeads("key_p", args.axes[kHQ], args.axes[kHKV]));
  LZ_RETURN_IF_ERROR(attention::ResolveScale("sm_scale", args.axes[kDQK], args.scalars[kSmScale]));
  LZ_RETURN_IF_ERROR(attention::CheckWindowLeft(args.scalars[kWindowLeft]));
  return attention::ResolveSoftcap(args.scalars[kSoftcap]);
}

inline constexpr Contract kContract = {
    .name = "pod_attention",
    .summary = "Attention of packed prefill sequences and of paged decode queries in one call.",
    .definition =
        "output_p is `ragged_attention` of the prefill tensors (window = window_left + 1), output_d "
        "`paged_decode_attention` of the decode tensors, both with the given sm_scale, softcap and sinks; neither "
        "batch sees the other, and each may be empty. Validity of index data and the result of invalid ones as there. "
        "No alibi_slopes and no attn_mask: calls that need them are two calls",
    .source = "Kamath et al. 2024, arXiv:2410.18038",
    .replaces = "a call for the prefill batch and a call for the decode batch",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
    .derived = kDerived,
    .numerics_classes = attention::kNumericsClasses,
    .canonicalize = &Canonicalize,
};

}  // namespace lz::ops::attention_pod
