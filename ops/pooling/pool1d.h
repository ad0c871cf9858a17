// pooling.pool1d: maximum or mean of windows over one axis.
#pragma once

#include <array>

#include "ops/common/pooling.h"

namespace lz::ops::pooling_pool1d {

inline Status Canonicalize(BoundArgs& args) { return pooling::Check<1>(args, {""}); }

inline constexpr auto kVariants = std::to_array<Variant>({{"pooling.pool1d"}});
inline constexpr auto kParams = std::to_array<Param>({
    TensorParam("input", "..., s", kFloats, "tensor that the windows move over"),
    pooling::Window("window"),
    pooling::Stride("stride"),
    pooling::Padding("padding"),
    pooling::kModeParam,
    pooling::kCountParam,
});
inline constexpr auto kOutputs = std::to_array<Output>({
    {.name = "output",
     .shape = "..., "
              "(s + 2 * padding - window) / stride + 1",
     .dtype = "input",
     .doc = "one value per window"},
});

inline constexpr Contract kContract = {
    .name = "pool1d",
    .summary = "Maximum or mean of windows over one axis.",
    .definition = LZ_POOLING_DEFINITION,
    .source = "Dumoulin and Visin 2016, arXiv:1603.07285, chapter 3",
    .replaces = "torch.nn.functional.max_pool1d or avg_pool1d(input, window, stride, padding)",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
    .canonicalize = &Canonicalize,
};

}  // namespace lz::ops::pooling_pool1d
