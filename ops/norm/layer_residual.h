// norm.layer.residual: residual addition fused with the layer normalization of its result.
#pragma once

#include <array>

#include "core/contract.h"

namespace lz::ops::norm_layer_residual {

enum Tensor { kInput, kResidual, kWeight, kBias, kOutput, kResidualOut };
enum Scalar { kNormalizedShape, kEps, kWeightOffset };

inline constexpr auto kVariants = std::to_array<Variant>({{"norm.layer.residual"}});
inline constexpr auto kParams = std::to_array<Param>({
    TensorParam("input", "..., hidden", kFloats, "output of the previous block, which is added to the stream"),
    SameDType(TensorParam("residual", "..., hidden", kFloats, "the residual stream so far"), "input"),
    Folds(RequiredInt("normalized_shape", "size of the last axis, or the sizes of the last axes"), "hidden"),
    OptionalTensor("weight", "hidden", kFloats, "gain; None means 1"),
    OptionalTensor("bias", "hidden", kFloats, "added at the end; None means 0"),
    Float("eps", 1e-5, "added to the variance"),
    KeywordOnly(Float("weight_offset", 0.0, "added to the weight; Nemotron's form is 1")),
});
inline constexpr auto kOutputs = std::to_array<Output>({
    {.name = "output", .shape = "..., hidden", .dtype = "input", .doc = "the normalized sum"},
    {.name = "residual_out", .shape = "..., hidden", .dtype = "input", .doc = "the sum: the stream from here on"},
});

inline constexpr Contract kContract = {
    .name = "fused_add_layer_norm",
    .summary = "Residual addition and layer normalization of the sum over the last axis.",
    .definition =
        "residual_out = r = input + residual, rounded to the dtype; output = (r - mean(r, last)) / sqrt(mean((r - "
        "mean)^2, last) + eps) * (weight + weight_offset) + bias, computed from the rounded sum, rounded once. output "
        "may alias input, residual_out may alias residual. Torch's kernels sum squares in FP32, which hold variances "
        "from 1e-38 to 1e38",
    .source = "Ba, Kiros and Hinton 2016, arXiv:1607.06450, eq. 4",
    .replaces = "residual = input + residual; torch.nn.functional.layer_norm(residual, (hidden,), weight, bias, eps)",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
};

}  // namespace lz::ops::norm_layer_residual
