// attention.cross.{prefill,decode}: every query attends to a separate sequence of keys and values (an encoder's, an
// image's): no causality, no positions.
#pragma once

#include "ops/common/attention.h"

namespace lz::ops::attention_cross {

enum Tensor { kQuery, kKey, kValue, kAttnMask, kSinks, kOutput, kLse };
enum Scalar { kScale, kDropoutP, kSoftcap, kReturnLse };
enum Axis { kB, kSQ, kHQ, kDQK, kSKV, kHKV, kDV };

inline constexpr auto kDecode = std::to_array<Condition>({{"s_q", Rel::kEq, 1}});
inline constexpr auto kVariants = std::to_array<Variant>({
    {"attention.cross.decode", kDecode},
    {"attention.cross.prefill"},
});

inline constexpr auto kParams = std::to_array<Param>({
    WithLayout(TensorParam("query", "b, s_q, h_q, d_qk", kFloats, "queries of the decoder's positions")),
    WithLayout(SameDType(TensorParam("key", "b, s_kv, h_kv, d_qk", kFloats, "keys of the other sequence"), "query")),
    WithLayout(SameDType(TensorParam("value", "b, s_kv, h_kv, d_v", kFloats, "values of the other sequence"), "query")),
    KeywordOnly(attention::Scale("scale")),
    attention::AttnMask(),
    KeywordOnly(
        Float("dropout_p", 0.0, "probability of dropping a weight; only kernels that declare it accept more than 0")),
    attention::SoftcapParam(),
    attention::Sinks(),
    attention::ReturnLse(),
});
inline constexpr auto kOutputs = std::to_array<Output>({
    {.name = "output", .shape = "b, s_q, h_q, d_v", .dtype = "query", .doc = "weighted values", .layout = true},
    attention::Lse("b, h_q, s_q"),
});
inline constexpr auto kDerived = std::to_array<DerivedFact>({{"group", "h_q / h_kv"}});

inline Status Canonicalize(BoundArgs& args) {
  LZ_RETURN_IF_ERROR(attention::CheckDropout(args.scalars[kDropoutP]));
  LZ_RETURN_IF_ERROR(attention::CheckHeads("key", args.axes[kHQ], args.axes[kHKV]));
  LZ_RETURN_IF_ERROR(attention::ResolveScale("scale", args.axes[kDQK], args.scalars[kScale]));
  return attention::ResolveSoftcap(args.scalars[kSoftcap]);
}

inline constexpr Contract kContract = {
    .name = "cross_attention",
    .summary = "Attention of queries over another sequence's keys and values; never causal.",
    .definition =
        "`attention` with causal=False: attn_mask (padding of the other sequence, say), softcap, sinks, dropout_p, "
        "empty rows and lse as there. The two sequences have no common positions, so there is no causal, window or "
        "alibi_slopes; only attn_mask masks keys. A call is cross attention by its function: attention(causal=False) "
        "computes the same as attention.standard or attention.gqa",
    .source = "Vaswani et al. 2017, arXiv:1706.03762, section 3.2.3",
    .replaces = "torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask)",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
    .derived = kDerived,
    .layouts = "BSHD: b s h d | BHSD: b h s d",
    .numerics_classes = attention::kNumericsClasses,
    .canonicalize = &Canonicalize,
};

}  // namespace lz::ops::attention_cross
