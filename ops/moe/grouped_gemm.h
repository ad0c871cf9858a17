// moe.grouped_gemm: a separate matrix product for each range of rows (rows sorted by expert).
#pragma once

#include <array>

#include "core/contract.h"

namespace lz::ops::moe_grouped_gemm {

enum Tensor { kInput, kWeight, kOffsets, kBias, kOutput };

inline constexpr auto kVariants = std::to_array<Variant>({{"moe.grouped_gemm"}});
inline constexpr auto kParams = std::to_array<Param>({
    TensorParam("input", "rows, d", kFloats, "rows in the order of their experts"),
    SameDType(TensorParam("weight", "experts, n, d", kFloats, "row-major weights of each expert"), "input"),
    TensorParam("offsets", "experts + 1", kIndices, "first row of each expert, then the end"),
    SameDType(OptionalTensor("bias", "experts, n", kFloats, "added to the rows of each expert"), "input"),
});
inline constexpr auto kOutputs = std::to_array<Output>({
    {.name = "output", .shape = "rows, n", .dtype = "input", .doc = "rows in the order of input"},
});

inline constexpr Contract kContract = {
    .name = "grouped_gemm",
    .summary = "Matrix products of ranges of rows, each with the weights of its expert.",
    .definition =
        "output[r] = weight[e] input[r] + bias[e] for offsets[e] <= r < offsets[e + 1], rounded once; rows of no "
        "expert are 0 and are not read. Offsets below 0, above the number of rows or decreasing are an error: the "
        "reference fails with code 1 and writes nothing, other kernels may do the same or stay within the tensors",
    .source = "Gale et al. 2022, arXiv:2211.15841, section 4",
    .replaces = "a loop of torch.nn.functional.linear over the experts; torch.nn.functional.grouped_mm",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
    .tolerance = {.compare = Compare::kRowMax},
};

}  // namespace lz::ops::moe_grouped_gemm
