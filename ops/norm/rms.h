// norm.rms: root mean square normalization over the last axis.
#pragma once

#include <array>

#include "core/contract.h"

namespace lz::ops::norm_rms {

enum Tensor { kInput, kWeight, kOutput };
enum Scalar { kEps, kWeightOffset, kNormalizedShape };

inline constexpr auto kVariants = std::to_array<Variant>({{"norm.rms"}});
inline constexpr auto kParams = std::to_array<Param>({
    TensorParam("input", "..., hidden", kFloats, "rows to normalize"),
    OptionalTensor("weight", "hidden", kFloats, "gain; None means 1"),
    Float("eps", 1e-6, "added to the mean square"),
    KeywordOnly(Float("weight_offset", 0.0, "added to the weight; Gemma's form is 1")),
    KeywordOnly(Folds(
        OptionalInt("normalized_shape", "size of the last axis, or the sizes of the last axes; None: of the last"),
        "hidden")),
});
inline constexpr auto kOutputs = std::to_array<Output>({
    {.name = "output", .shape = "..., hidden", .dtype = "input", .doc = "same shape as input"},
});
inline constexpr auto kDerived = std::to_array<DerivedFact>({
    {"rows", "..."},  // the product of the leading axes
});

inline constexpr Contract kContract = {
    .name = "rms_norm",
    .summary = "Root mean square normalization over the last axis.",
    .definition =
        "output = input / sqrt(mean(input^2, last) + eps) * (weight + weight_offset), rounded once. "
        "CUDA kernels and torch's sum squares in FP32, which hold mean squares from 1e-38 to 1e38",
    .source = "Zhang and Sennrich 2019, arXiv:1910.07467, eq. 4",
    .replaces = "torch.nn.functional.rms_norm(input, (input.shape[-1],), weight, eps)",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
    .derived = kDerived,
};

}  // namespace lz::ops::norm_rms
