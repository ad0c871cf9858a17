// attention.merge: combines attention over two disjoint sets of keys, given each part's normalized output and lse.
#pragma once

#include "ops/common/attention.h"

namespace lz::ops::attention_merge {

enum Tensor { kVA, kSA, kVB, kSB, kSinks, kOutput, kLse };
enum Axis { kN, kH, kD };

inline constexpr auto kVariants = std::to_array<Variant>({{"attention.merge"}});
inline constexpr auto kParams = std::to_array<Param>({
    TensorParam("v_a", "n, h, d", kFloats, "output of part a, normalized by its own sum"),
    TensorParam("s_a", "n, h", Mask(DType::kF32), "lse of part a, natural log; -inf: the part is empty"),
    SameDType(TensorParam("v_b", "n, h, d", kFloats, "output of part b"), "v_a"),
    TensorParam("s_b", "n, h", Mask(DType::kF32), "lse of part b"),
    KeywordOnly(OptionalTensor("sinks", "h", kFloats, "logit per head of a key without a value, for the last merge")),
});
inline constexpr auto kOutputs = std::to_array<Output>({
    {.name = "output", .shape = "n, h, d", .dtype = "v_a", .doc = "attention over both sets of keys"},
    {.name = "lse", .shape = "n, h", .dtype = "float32", .doc = "its lse, without the sink"},
});
inline constexpr auto kNumerics = std::to_array<std::string_view>({"fp32"});

inline constexpr Contract kContract = {
    .name = "merge_attention",
    .summary = "Merges attention over two disjoint sets of keys (cascade, split keys).",
    .definition =
        "M = max(s_a, s_b), N = max(M, sinks): lse = M + ln(exp(s_a - M) + exp(s_b - M)); output = (exp(s_a - N) v_a + "
        "exp(s_b - N) v_b) / (exp(s_a - N) + exp(s_b - N) + exp(sinks - N)), the last term only with sinks. A part "
        "with s = -inf is not read, whatever it holds; both -inf: output 0 and lse -inf; a sink of +inf: output 0; a "
        "NaN in s makes the row NaN. Parts computed with a sink cannot be merged: give the sink to the last merge.",
    .source = "section 2.3 of arXiv:2307.08691; lse in natural log",
    .replaces = "torch.logsumexp over the stacked lse and a weighted sum of the parts",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
    .numerics_classes = kNumerics,
};

}  // namespace lz::ops::attention_merge
