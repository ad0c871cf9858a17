// reduce.tree: the sum of partial results in one fixed order, independent of the number of ranks.
#pragma once

#include <array>

#include "core/contract.h"

namespace lz::ops::reduce_tree {

enum Tensor { kInput, kOutput };
enum Scalar { kDType };

inline constexpr auto kVariants = std::to_array<Variant>({{"reduce.tree"}});
inline constexpr auto kParams = std::to_array<Param>({
    TensorParam("input", "n, rows, hidden", kFloats, "n partial results, in the order of their ranks"),
    KeywordOnly({.name = "dtype",
                 .kind = ParamKind::kChoice,
                 .doc = "dtype of the output; None: the input's. Parts of a larger sum stay in float32",
                 .optional = true,
                 .choices = "float32|float64|float16|bfloat16"}),
});
inline constexpr auto kOutputs = std::to_array<Output>({
    {.name = "output", .shape = "rows, hidden", .dtype = "input", .doc = "their sum", .dtype_choice = "dtype"},
});

inline constexpr Contract kContract = {
    .name = "reduce_tree",
    .summary = "Sums partial results over the first axis in a fixed binary tree: the same bits on every kernel.",
    .definition =
        "Level by level neighbors 2 i and 2 i + 1 are added and an odd last one moves up unchanged, until one is "
        "left; each addition in float32 (float64 for float64 input), rounded to nearest even; the last result is "
        "rounded once to the output's dtype; for n = 0 it is 0. So sums of aligned groups of 2^j partials, kept in "
        "float32 and summed the same way, are bitwise equal to the whole sum",
    .source = "tree-based invariant reduction: arXiv:2511.17826",
    .replaces = "input.sum(0), whose order depends on the device and on n",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
    .tolerance = {.compare = Compare::kExact},
};

}  // namespace lz::ops::reduce_tree
