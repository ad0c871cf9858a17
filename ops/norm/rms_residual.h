// norm.rms.residual: residual addition fused with the root mean square normalization of its result.
#pragma once

#include <array>

#include "core/contract.h"

namespace lz::ops::norm_rms_residual {

enum Tensor { kInput, kResidual, kWeight, kOutput, kResidualOut };
enum Scalar { kEps, kWeightOffset, kNormalizedShape };

inline constexpr auto kVariants = std::to_array<Variant>({{"norm.rms.residual"}});
inline constexpr auto kParams = std::to_array<Param>({
    TensorParam("input", "..., hidden", kFloats, "output of the previous block, which is added to the stream"),
    SameDType(TensorParam("residual", "..., hidden", kFloats, "the residual stream so far"), "input"),
    OptionalTensor("weight", "hidden", kFloats, "gain; None means 1"),
    Float("eps", 1e-6, "added to the mean square"),
    KeywordOnly(Float("weight_offset", 0.0, "added to the weight; Gemma's form is 1")),
    KeywordOnly(Folds(
        OptionalInt("normalized_shape", "size of the last axis, or the sizes of the last axes; None: of the last"),
        "hidden")),
});
inline constexpr auto kOutputs = std::to_array<Output>({
    {.name = "output", .shape = "..., hidden", .dtype = "input", .doc = "the normalized sum"},
    {.name = "residual_out", .shape = "..., hidden", .dtype = "input", .doc = "the sum: the stream from here on"},
});

inline constexpr Contract kContract = {
    .name = "fused_add_rms_norm",
    .summary = "Residual addition and root mean square normalization of the sum over the last axis.",
    .definition =
        "residual_out = input + residual, rounded to the dtype; output = residual_out / sqrt(mean(residual_out^2, "
        "last) + eps) * (weight + weight_offset), computed from the rounded sum, rounded once. output may alias "
        "input, residual_out may alias residual. CUDA kernels sum squares in FP32, which hold mean squares from 1e-38 "
        "to 1e38",
    .source = "Zhang and Sennrich 2019, arXiv:1910.07467, eq. 4",
    .replaces = "residual = input + residual; torch.nn.functional.rms_norm(residual, (hidden,), weight, eps)",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
};

}  // namespace lz::ops::norm_rms_residual
