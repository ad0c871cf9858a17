// mlp.linear: a matrix product with row-major weights [n, k], and a bias.
#pragma once

#include <array>

#include "core/contract.h"

namespace lz::ops::mlp_linear {

enum Tensor { kInput, kWeight, kBias, kOutput };

inline constexpr auto kVariants = std::to_array<Variant>({{"mlp.linear"}});
inline constexpr auto kParams = std::to_array<Param>({
    TensorParam("input", "..., k", kFloats, "rows to transform"),
    SameDType(TensorParam("weight", "n, k", kFloats, "one row of k weights per output column"), "input"),
    SameDType(OptionalTensor("bias", "n", kFloats, "added to every row; None means 0"), "input"),
});
inline constexpr auto kOutputs = std::to_array<Output>({
    {.name = "output", .shape = "..., n", .dtype = "input", .doc = "the rows of input @ weight^T + bias"},
});
inline constexpr auto kDerived = std::to_array<DerivedFact>({
    {"rows", "..."},  // the product of the leading axes
});

inline constexpr Contract kContract = {
    .name = "linear",
    .summary = "Matrix product with row-major weights, plus a bias.",
    .definition =
        "output[..., j] = sum_i input[..., i] * weight[j, i] + bias[j], rounded once; in bf16, factors and products "
        "below 2^-126 may count as 0",
    .source = "definition",
    .replaces = "torch.nn.functional.linear(input, weight, bias)",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
    .derived = kDerived,
    .tolerance = {.compare = Compare::kRowMax},
};

}  // namespace lz::ops::mlp_linear
