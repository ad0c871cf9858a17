// attention.{standard,gqa}.{prefill,decode}: scaled dot product attention over dense keys and values.
//
// Axes: b batch, s_q / s_kv query and key positions, h_q / h_kv heads, d_qk / d_v head dimensions. Query head h reads
// key/value head h / (h_q / h_kv). Row i has position p = i + s_kv - s_q (bottom-right alignment).
#pragma once

#include "ops/common/attention.h"

namespace lz::ops::attention_dense {

enum Tensor { kQuery, kKey, kValue, kAttnMask, kSinks, kAlibiSlopes, kOutput, kLse };
enum Scalar { kCausal, kScale, kDropoutP, kWindow, kSoftcap, kReturnLse };
enum Axis { kB, kSQ, kHQ, kDQK, kSKV, kHKV, kDV };

inline constexpr auto kStandardDecode = std::to_array<Condition>({{"group", Rel::kEq, 1}, {"s_q", Rel::kEq, 1}});
inline constexpr auto kStandard = std::to_array<Condition>({{"group", Rel::kEq, 1}});
inline constexpr auto kDecode = std::to_array<Condition>({{"s_q", Rel::kEq, 1}});
inline constexpr auto kVariants = std::to_array<Variant>({
    {"attention.standard.decode", kStandardDecode},
    {"attention.standard.prefill", kStandard},
    {"attention.gqa.decode", kDecode},
    {"attention.gqa.prefill"},
});

inline constexpr auto kParams = std::to_array<Param>({
    WithLayout(TensorParam("query", "b, s_q, h_q, d_qk", kFloats, "queries")),
    WithLayout(Promotes(SameDType(TensorParam("key", "b, s_kv, h_kv, d_qk", kFloats, "keys"), "query"))),
    WithLayout(Promotes(SameDType(TensorParam("value", "b, s_kv, h_kv, d_v", kFloats, "values"), "query"))),
    KeywordOnly(OptionalBool("causal", "mask keys after the row's position; None: True without a mask, else False")),
    KeywordOnly(attention::Scale("scale")),
    attention::AttnMask(),
    KeywordOnly(
        Float("dropout_p", 0.0, "probability of dropping a weight; only kernels that declare it accept more than 0")),
    attention::Window(),
    attention::SoftcapParam(),
    attention::Sinks(),
    attention::AlibiSlopes(),
    attention::ReturnLse(),
});
inline constexpr auto kOutputs = std::to_array<Output>({
    {.name = "output", .shape = "b, s_q, h_q, d_v", .dtype = "query", .doc = "weighted values", .layout = true},
    attention::Lse("b, h_q, s_q"),
});
inline constexpr auto kAliases = std::to_array<std::string_view>({"attention.causal", "attention.full"});
inline constexpr auto kDerived = std::to_array<DerivedFact>({{"group", "h_q / h_kv"}});

inline Status Canonicalize(BoundArgs& args) {
  LZ_RETURN_IF_ERROR(attention::ResolveCausal(args.tensors[kAttnMask], args.scalars[kCausal]));
  LZ_RETURN_IF_ERROR(attention::CheckDropout(args.scalars[kDropoutP]));
  LZ_RETURN_IF_ERROR(attention::CheckHeads("key", args.axes[kHQ], args.axes[kHKV]));
  LZ_RETURN_IF_ERROR(attention::ResolveScale("scale", args.axes[kDQK], args.scalars[kScale]));
  LZ_RETURN_IF_ERROR(attention::ResolveWindow(args.scalars[kWindow]));
  return attention::ResolveSoftcap(args.scalars[kSoftcap]);
}

inline constexpr Contract kContract = {
    .name = "attention",
    .summary = "Scaled dot product attention: softmax(scale * query key^T + biases) value, per head.",
    .definition =
        "p = i + s_kv - s_q. z(i,j) = scale * (query_i . key_j); with softcap c: z = c tanh(z / c); with alibi_slopes "
        "a: z -= a[h] |p - j|; with a float attn_mask: z += mask. Key j is visible to row i if (not causal or j <= p) "
        "and (no window or p - window < j <= p) and the mask is not False or -inf there and z(i,j) is not -inf. m = "
        "max of visible z, l = sum of exp(z - m): output_i = sum exp(z - m) value_j / (l + exp(sinks[h] - m)), the "
        "second term only with sinks; lse = m + ln l. A row without a visible key (rows with p < 0 of a causal call "
        "too) has output 0 and lse -inf, with sinks as well; with a sink of +inf the output is 0. Invisible keys and "
        "values are skipped, not weighted by 0, so a NaN there never reaches an output; a visible NaN makes the row "
        "NaN, and so does a visible z of +inf. h_q is a multiple of h_kv. causal=True together with attn_mask is "
        "refused. dropout_p > 0 is served only by a kernel that accepts the argument; the references do not, so "
        "without such a kernel the call has none.",
    .source = "Vaswani et al. 2017, arXiv:1706.03762, eq. 1; ALiBi arXiv:2108.12409; sinks arXiv:2508.10925",
    .replaces = "torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask, is_causal=causal)",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
    .derived = kDerived,
    .layouts = "BSHD: b s h d | BHSD: b h s d",
    .numerics_classes = attention::kNumericsClasses,
    .canonicalize = &Canonicalize,
    .aliases = kAliases,
};

}  // namespace lz::ops::attention_dense
