// attention.mla.decode: decode of multi-head latent attention over one sequence of compressed entries.
//
// One compressed entry (d_ckv values) is key and value of all heads; next to it is the rotated part of the key (d_kpe).
// The query is already multiplied by the key's up projection (absorbed form), so the output is in latent space.
#pragma once

#include "ops/common/attention.h"

namespace lz::ops::attention_mla_decode {

enum Tensor { kQNope, kQPe, kCkv, kKpe, kOutput, kLse };
enum Scalar { kSmScale, kCausal, kReturnLse };
enum Axis { kTokens, kH, kDCkv, kDKpe, kKVLen };

inline constexpr auto kVariants = std::to_array<Variant>({{"attention.mla.decode"}});
inline constexpr auto kParams = std::to_array<Param>({
    TensorParam("q_nope", "tokens, h, d_ckv", kFloats, "queries in latent space, without position"),
    SameDType(TensorParam("q_pe", "tokens, h, d_kpe", kFloats, "rotated part of the queries"), "q_nope"),
    TensorParam("ckv", "kv_len, 1, d_ckv", attention::kCacheDTypes, "compressed entries: keys and values"),
    SameDType(TensorParam("kpe", "kv_len, 1, d_kpe", attention::kCacheDTypes, "rotated parts of the keys"), "ckv"),
    RequiredFloat("sm_scale", "factor of the logits: 1/sqrt of the head dimension before absorption"),
    KeywordOnly(Bool("causal", false, "tokens are the last positions: mask entries after the token's own")),
    attention::ReturnLse(),
});
inline constexpr auto kOutputs = std::to_array<Output>({
    {.name = "output", .shape = "tokens, h, d_ckv", .dtype = "q_nope", .doc = "weighted compressed entries"},
    attention::Lse("tokens, h"),
});

inline Status Canonicalize(BoundArgs& args) {
  return attention::ResolveScale("sm_scale", args.axes[kDCkv] + args.axes[kDKpe], args.scalars[kSmScale]);
}

inline constexpr Contract kContract = {
    .name = "mla_decode",
    .summary = "Decode of multi-head latent attention over one sequence of compressed entries.",
    .definition =
        "z(i,j) = sm_scale * (q_nope_i . ckv_j + q_pe_i . kpe_j); output_i = sum softmax(z)_ij ckv_j; lse = ln sum "
        "exp(z). Every token sees every entry; with causal, token i of n sees the entries up to i + kv_len - n "
        "(several tokens of one sequence at once, as in speculative decoding). Without a visible entry: 0 and -inf. A "
        "batch of sequences is `mla_decode_paged`. The model has full attention over one latent key, so there is no "
        "window, softcap, sink, alibi_slopes or attn_mask",
    .source = "DeepSeek-V2, arXiv:2405.04434, section 2.1, absorbed form",
    .replaces = "two matrix products and a softmax in torch",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
    .numerics_classes = attention::kNumericsClasses,
    .canonicalize = &Canonicalize,
};

}  // namespace lz::ops::attention_mla_decode
