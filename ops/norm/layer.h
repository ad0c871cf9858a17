// norm.layer: layer normalization over the last axis.
#pragma once

#include <array>

#include "core/contract.h"

namespace lz::ops::norm_layer {

enum Tensor { kInput, kWeight, kBias, kOutput };
enum Scalar { kNormalizedShape, kEps, kWeightOffset };

inline constexpr auto kVariants = std::to_array<Variant>({{"norm.layer"}});
inline constexpr auto kParams = std::to_array<Param>({
    TensorParam("input", "..., hidden", kFloats, "rows to normalize"),
    Folds(RequiredInt("normalized_shape", "size of the last axis, or the sizes of the last axes"), "hidden"),
    OptionalTensor("weight", "hidden", kFloats, "gain; None means 1"),
    OptionalTensor("bias", "hidden", kFloats, "added at the end; None means 0"),
    Float("eps", 1e-5, "added to the variance"),
    KeywordOnly(Float("weight_offset", 0.0, "added to the weight; Nemotron's form is 1")),
});
inline constexpr auto kOutputs = std::to_array<Output>({
    {.name = "output", .shape = "..., hidden", .dtype = "input", .doc = "same shape as input"},
});

inline constexpr Contract kContract = {
    .name = "layer_norm",
    .summary = "Layer normalization over the last axis.",
    .definition =
        "output = (input - mean(input, last)) / sqrt(mean((input - mean)^2, last) + eps) * (weight + weight_offset) + "
        "bias, rounded once. CUDA kernels and torch's sum squares in FP32, which hold variances from 1e-38 to 1e38",
    .source = "Ba, Kiros and Hinton 2016, arXiv:1607.06450, eq. 4",
    .replaces = "torch.nn.functional.layer_norm(input, (input.shape[-1],), weight, bias, eps)",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
};

}  // namespace lz::ops::norm_layer
