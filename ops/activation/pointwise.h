// activation.pointwise: one activation function of every element.
#pragma once

#include <array>

#include "ops/common/activation.h"

namespace lz::ops::activation_pointwise {

enum Tensor { kInput, kOutput };
enum Scalar { kFunction };

inline constexpr auto kVariants = std::to_array<Variant>({{"activation.pointwise"}});
inline constexpr auto kParams = std::to_array<Param>({
    TensorParam("input", "...", kFloats, "input of the function"),
    RequiredChoice("function", activation::kNames, "the activation function"),
});
inline constexpr auto kOutputs = std::to_array<Output>({
    {.name = "output", .shape = "...", .dtype = "input", .doc = "same shape as input"},
});

inline constexpr Contract kContract = {
    .name = "activation",
    .summary = "An activation function of every element.",
    .definition = "output = function(input), rounded once; " LZ_ACTIVATION_DEFINITIONS "output may alias input",
    .source =
        "Hendrycks and Gimpel 2016, arXiv:1606.08415 (gelu, its tanh and sigmoid forms, silu); So et al. 2021, "
        "arXiv:2109.08668 (relu2)",
    .replaces = "torch.nn.functional.silu, gelu, relu; torch.sigmoid, torch.tanh",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
};

}  // namespace lz::ops::activation_pointwise
