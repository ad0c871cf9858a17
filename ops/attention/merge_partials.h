// attention.merge.partials: combines attention over any number of disjoint sets of keys: normalized outputs with their
// lse, or raw sums with row max and row sum.
#pragma once

#include "ops/common/attention.h"

namespace lz::ops::attention_merge_partials {

enum Tensor { kPartials, kPartLse, kRowSum, kSinks, kOutput, kLse };
enum Scalar { kDType };
enum Axis { kSplits, kN, kH, kD };

inline constexpr auto kVariants = std::to_array<Variant>({{"attention.merge.partials"}});
inline constexpr auto kParams = std::to_array<Param>({
    TensorParam("partials", "splits, n, h, d", kFloats, "outputs of the parts, normalized, or raw sums with row_sum"),
    TensorParam("part_lse", "splits, n, h", Mask(DType::kF32),
                "lse of the parts, natural log; with row_sum their row max; -inf: the part is empty"),
    OptionalTensor("row_sum", "splits, n, h", Mask(DType::kF32), "sum of exp(logit - row max) of the parts"),
    attention::Sinks("h"),
    KeywordOnly(Choice("dtype", "float32|bfloat16|float64", 0, "dtype of the output")),
});
inline constexpr auto kOutputs = std::to_array<Output>({
    {.name = "output",
     .shape = "n, h, d",
     .dtype = "float32",
     .doc = "attention over all sets of keys",
     .dtype_choice = "dtype"},
    {.name = "lse", .shape = "n, h", .dtype = "float32", .doc = "its lse, without the sink"},
});

inline constexpr Contract kContract = {
    .name = "merge_partials",
    .summary = "Merges any number of attention partials: normalized with lse, or raw with row max and row sum.",
    .definition =
        "With s = part_lse and l = row_sum, 1 where it is not given, over the parts t: M = max s_t, N = max(M, sinks): "
        "lse = M + ln sum exp(s_t - M) l_t; output = sum exp(s_t - N) partials_t / (sum exp(s_t - N) l_t + exp(sinks - "
        "N)), the last term only with sinks. A part with s = -inf is not read, whatever it holds; all parts -inf: "
        "output 0 and lse -inf; a sink of +inf: output 0; a NaN or +inf in s makes the row NaN. Parts computed with a "
        "sink cannot be merged: give it here",
    .source = "section 2.3 of arXiv:2307.08691; lse in natural log",
    .replaces = "torch.logsumexp over the parts' lse and a weighted sum of the parts",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
};

}  // namespace lz::ops::attention_merge_partials
