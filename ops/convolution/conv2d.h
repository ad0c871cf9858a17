// convolution.conv2d: convolution over two axes. Strides are given per axis: patches of 14 x 14 have stride_h =
// stride_w = 14.
#pragma once

#include <array>

#include "ops/common/convolution.h"

namespace lz::ops::convolution_conv2d {

inline Status Canonicalize(BoundArgs& args) { return convolution::Check<2>(args, {"_h", "_w"}); }

inline constexpr auto kVariants = std::to_array<Variant>({{"convolution.conv2d"}});
inline constexpr auto kParams = std::to_array<Param>({
    TensorParam("input", "n, c_in, h, w", kFloats, "channels of n samples"),
    SameDType(TensorParam("weight", "c_out, c_in / groups, k_h, k_w", kFloats, "windows of each output channel"),
              "input"),
    convolution::kBiasParam,
    convolution::Stride("stride_h"),
    convolution::Stride("stride_w"),
    convolution::Padding("padding_h"),
    convolution::Padding("padding_w"),
    convolution::Dilation("dilation_h"),
    convolution::Dilation("dilation_w"),
    convolution::kGroupsParam,
});
inline constexpr auto kOutputs = std::to_array<Output>({
    {.name = "output",
     .shape = "n, c_out, "
              "(h + 2 * padding_h - dilation_h * (k_h - 1) - 1) / stride_h + 1, "
              "(w + 2 * padding_w - dilation_w * (k_w - 1) - 1) / stride_w + 1",
     .dtype = "input",
     .doc = "channels of n samples"},
});

inline constexpr Contract kContract = {
    .name = "conv2d",
    .summary = "Convolution (cross-correlation) over two axes.",
    .definition = LZ_CONVOLUTION_DEFINITION,
    .source = "Dumoulin and Visin 2016, arXiv:1603.07285, relationship 14",
    .replaces =
        "torch.nn.functional.conv2d(input, weight, bias, (stride_h, stride_w), (padding_h, padding_w), (dilation_h, "
        "dilation_w), groups)",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
    .tolerance = {.compare = Compare::kRowMax},
    .canonicalize = &Canonicalize,
};

}  // namespace lz::ops::convolution_conv2d
