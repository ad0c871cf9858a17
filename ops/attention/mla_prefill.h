// attention.mla.prefill: multi-head latent attention after the up projection: each head's key has a part of its own and
// a rotated part that all heads share.
#pragma once

#include "ops/common/attention.h"

namespace lz::ops::attention_mla_prefill {

enum Tensor { kQNope, kQPe, kKNope, kKPe, kValue, kOutput, kLse };
enum Scalar { kCausal, kSmScale, kReturnLse };
enum Axis { kB, kSQ, kH, kDNope, kDPe, kSKV, kDV };

inline constexpr auto kVariants = std::to_array<Variant>({{"attention.mla.prefill"}});
inline constexpr auto kParams = std::to_array<Param>({
    WithLayout(TensorParam("q_nope", "b, s_q, h, d_nope", kFloats, "queries without position")),
    WithLayout(SameDType(TensorParam("q_pe", "b, s_q, h, d_pe", kFloats, "rotated part of the queries"), "q_nope")),
    WithLayout(SameDType(TensorParam("k_nope", "b, s_kv, h, d_nope", kFloats, "keys, projected up from the latents"),
                         "q_nope")),
    WithLayout(SameDType(TensorParam("k_pe", "b, s_kv, 1, d_pe", kFloats,
                                     "rotated part of the keys, shared by all "
                                     "heads"),
                         "q_nope")),
    WithLayout(
        SameDType(TensorParam("value", "b, s_kv, h, d_v", kFloats, "values, projected up from the latents"), "q_nope")),
    KeywordOnly(Bool("causal", true, "mask keys after the row's position")),
    KeywordOnly(attention::Scale("sm_scale", "factor of the logits; None: 1/sqrt(d_nope + d_pe)")),
    attention::ReturnLse(),
});
inline constexpr auto kOutputs = std::to_array<Output>({
    {.name = "output", .shape = "b, s_q, h, d_v", .dtype = "q_nope", .doc = "weighted values", .layout = true},
    attention::Lse("b, h, s_q"),
});

inline Status Canonicalize(BoundArgs& args) {
  return attention::ResolveScale("sm_scale", args.axes[kDNope] + args.axes[kDPe], args.scalars[kSmScale]);
}

inline constexpr Contract kContract = {
    .name = "mla_prefill",
    .summary = "Prefill of multi-head latent attention with keys and values projected up from the latents.",
    .definition =
        "`attention` of the queries [q_nope, q_pe] and keys [k_nope, k_pe], joined in the last axis, k_pe repeated for "
        "every head: z = sm_scale * (q_nope . k_nope + q_pe . k_pe), causal bottom-right, empty rows and lse as there. "
        "The model has one key per query head and full attention, so there is no grouping, window, softcap, sink, "
        "alibi_slopes or attn_mask; an unequal batch is a call per sequence",
    .source = "DeepSeek-V2, arXiv:2405.04434, section 2.1, eq. 9 to 19",
    .replaces = "joining the parts, then torch.nn.functional.scaled_dot_product_attention",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
    .layouts = "BSHD: b s h d | BHSD: b h s d",
    .numerics_classes = attention::kNumericsClasses,
    .canonicalize = &Canonicalize,
};

}  // namespace lz::ops::attention_mla_prefill
