// convolution.conv3d: convolution over three axes. Strides are given per axis: patches of 14 x 14 have stride_h =
// stride_w = 14.
#pragma once

#include <array>

#include "ops/common/convolution.h"

namespace lz::ops::convolution_conv3d {

inline Status Canonicalize(BoundArgs& args) { return convolution::Check<3>(args, {"_d", "_h", "_w"}); }

inline constexpr auto kVariants = std::to_array<Variant>({{"convolution.conv3d"}});
inline constexpr auto kParams = std::to_array<Param>({
    TensorParam("input", "n, c_in, d, h, w", kFloats, "channels of n samples"),
    SameDType(TensorParam("weight", "c_out, c_in / groups, k_d, k_h, k_w", kFloats, "windows of each output channel"),
              "input"),
    convolution::kBiasParam,
    convolution::Stride("stride_d"),
    convolution::Stride("stride_h"),
    convolution::Stride("stride_w"),
    convolution::Padding("padding_d"),
    convolution::Padding("padding_h"),
    convolution::Padding("padding_w"),
    convolution::Dilation("dilation_d"),
    convolution::Dilation("dilation_h"),
    convolution::Dilation("dilation_w"),
    convolution::kGroupsParam,
});
inline constexpr auto kOutputs = std::to_array<Output>({
    {.name = "output",
     .shape = "n, c_out, "
              "(d + 2 * padding_d - dilation_d * (k_d - 1) - 1) / stride_d + 1, "
              "(h + 2 * padding_h - dilation_h * (k_h - 1) - 1) / stride_h + 1, "
              "(w + 2 * padding_w - dilation_w * (k_w - 1) - 1) / stride_w + 1",
     .dtype = "input",
     .doc = "channels of n samples"},
});

inline constexpr Contract kContract = {
    .name = "conv3d",
    .summary = "Convolution (cross-correlation) over three axes.",
    .definition = LZ_CONVOLUTION_DEFINITION,
    .source = "Dumoulin and Visin 2016, arXiv:1603.07285, relationship 14",
    .replaces = "torch.nn.functional.conv3d(input, weight, bias, (stride_d, stride_h, stride_w), ...)",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
    .tolerance = {.compare = Compare::kRowMax},
    .canonicalize = &Canonicalize,
};

}  // namespace lz::ops::convolution_conv3d
