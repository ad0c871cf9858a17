// mlp.head_linear: the columns of each head times its own matrix, stored in either order.
#pragma once

#include <array>

#include "core/contract.h"

namespace lz::ops::mlp_head_linear {

enum Tensor { kInput, kWeight, kOutput };
enum Scalar { kDType };

inline constexpr auto kVariants = std::to_array<Variant>({{"mlp.head_linear"}});
inline constexpr auto kParams = std::to_array<Param>({
    TensorParam("input", "..., h, k", kFloats, "rows of h heads"),
    SameDType(TensorParam("weight", "h, n, k", kFloats, "matrix of each head; its dense axis may be n or k"), "input"),
    RequiredChoice("dtype", "float32|float16|bfloat16", "dtype of the output"),
});
inline constexpr auto kOutputs = std::to_array<Output>({
    {.name = "output", .shape = "..., h, n", .dtype = "input", .doc = "rows of h heads", .dtype_choice = "dtype"},
});

inline constexpr Contract kContract = {
    .name = "head_linear",
    .summary = "Matrix products of the heads of each row, each with a weight of its own.",
    .definition =
        "output[..., h, j] = sum_i input[..., h, i] * weight[h, j, i], rounded once, to dtype. With one head and "
        "float32 it multiplies rows that are narrower than their result, as routers of experts do",
    .source = "DeepSeek-V2, arXiv:2405.04434, section 2.1: the up projections, absorbed in queries and output",
    .replaces = "torch.einsum('...hk,hnk->...hn', input, weight).to(dtype)",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
    .tolerance = {.compare = Compare::kRowMax},
};

}  // namespace lz::ops::mlp_head_linear
