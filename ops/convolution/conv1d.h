// convolution.conv1d: convolution over one axis.
#pragma once

#include <array>

#include "ops/common/convolution.h"

namespace lz::ops::convolution_conv1d {

inline Status Canonicalize(BoundArgs& args) { return convolution::Check<1>(args, {""}); }

inline constexpr auto kVariants = std::to_array<Variant>({{"convolution.conv1d"}});
inline constexpr auto kParams = std::to_array<Param>({
    TensorParam("input", "n, c_in, s", kFloats, "channels of n samples"),
    SameDType(TensorParam("weight", "c_out, c_in / groups, k", kFloats, "windows of each output channel"), "input"),
    convolution::kBiasParam,
    convolution::Stride("stride"),
    convolution::Padding("padding"),
    convolution::Dilation("dilation"),
    convolution::kGroupsParam,
});
inline constexpr auto kOutputs = std::to_array<Output>({
    {.name = "output",
     .shape = "n, c_out, "
              "(s + 2 * padding - dilation * (k - 1) - 1) / stride + 1",
     .dtype = "input",
     .doc = "channels of n samples"},
});

inline constexpr Contract kContract = {
    .name = "conv1d",
    .summary = "Convolution (cross-correlation) over one axis.",
    .definition = LZ_CONVOLUTION_DEFINITION,
    .source = "Dumoulin and Visin 2016, arXiv:1603.07285, relationship 14",
    .replaces = "torch.nn.functional.conv1d(input, weight, bias, stride, padding, dilation, groups)",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
    .tolerance = {.compare = Compare::kRowMax},
    .canonicalize = &Canonicalize,
};

}  // namespace lz::ops::convolution_conv1d
