// posenc.alibi: the distance bias of attention with linear biases, as a mask that is added to logits.
#pragma once

#include "ops/common/attention.h"

namespace lz::ops::posenc_alibi {

enum Tensor { kSlopes, kBias };
enum Scalar { kSQ, kSKV, kCausal };
enum Axis { kH };

inline constexpr auto kVariants = std::to_array<Variant>({{"posenc.alibi"}});
inline constexpr auto kParams = std::to_array<Param>({
    TensorParam("slopes", "h", kFloats, "slope of each head; lz.alibi_slopes(h) returns the published ones"),
    RequiredInt("s_q", "queries: the last positions"),
    RequiredInt("s_kv", "keys"),
    KeywordOnly(Bool("causal", false, "-inf for keys after the row's position")),
});
inline constexpr auto kOutputs = std::to_array<Output>({
    {.name = "bias",
     .shape = "h, s_q, s_kv",
     .dtype = "slopes",
     .doc = "bias that is added to the logits: an "
            "attn_mask"},
});

inline Status CheckLength(std::string_view name, const lz_scalar& length) {
  if (length.value.i >= 0) return {};
  return attention::Invalid(name, "a length >= 0", std::to_string(length.value.i), "pass the number of positions");
}
inline Status Canonicalize(BoundArgs& args) {
  LZ_RETURN_IF_ERROR(CheckLength("s_q", args.scalars[kSQ]));
  return CheckLength("s_kv", args.scalars[kSKV]);
}

inline constexpr Contract kContract = {
    .name = "alibi",
    .summary = "Distance bias of attention with linear biases (ALiBi), per head, query and key.",
    .definition =
        "p = i + s_kv - s_q; bias(h, i, j) = -slopes[h] |p - j|, with causal -inf for j > p. It is an attn_mask of "
        "`attention`; alibi_slopes there does the same without the tensor. Published slopes of h heads: with n the "
        "largest power of two up to h, 2^(-8 k / n) for k = 1..n, then 2^(-4 k / n) for k = 1, 3, 5, ... FP32 or "
        "wider, rounded once",
    .source = "Press et al. 2022, arXiv:2108.12409",
    .replaces = "-slopes[:, None, None] * (torch.arange(s_q)[:, None] + s_kv - s_q - torch.arange(s_kv)).abs()",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
    .canonicalize = &Canonicalize,
};

}  // namespace lz::ops::posenc_alibi
