// pooling.pool2d: maximum or mean of windows over two axes.
#pragma once

#include <array>

#include "ops/common/pooling.h"

namespace lz::ops::pooling_pool2d {

inline Status Canonicalize(BoundArgs& args) { return pooling::Check<2>(args, {"_h", "_w"}); }

inline constexpr auto kVariants = std::to_array<Variant>({{"pooling.pool2d"}});
inline constexpr auto kParams = std::to_array<Param>({
    TensorParam("input", "..., h, w", kFloats, "tensor that the windows move over"),
    pooling::Window("window_h"),
    pooling::Window("window_w"),
    pooling::Stride("stride_h"),
    pooling::Stride("stride_w"),
    pooling::Padding("padding_h"),
    pooling::Padding("padding_w"),
    pooling::kModeParam,
    pooling::kCountParam,
});
inline constexpr auto kOutputs = std::to_array<Output>({
    {.name = "output",
     .shape = "..., "
              "(h + 2 * padding_h - window_h) / stride_h + 1, "
              "(w + 2 * padding_w - window_w) / stride_w + 1",
     .dtype = "input",
     .doc = "one value per window"},
});

inline constexpr Contract kContract = {
    .name = "pool2d",
    .summary = "Maximum or mean of windows over two axes.",
    .definition = LZ_POOLING_DEFINITION,
    .source = "Dumoulin and Visin 2016, arXiv:1603.07285, chapter 3",
    .replaces =
        "torch.nn.functional.max_pool2d or avg_pool2d(input, (window_h, window_w), (stride_h, stride_w), (padding_h, "
        "padding_w))",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
    .canonicalize = &Canonicalize,
};

}  // namespace lz::ops::pooling_pool2d
