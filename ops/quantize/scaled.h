// quantize: values in a narrow format with scales, which are computed unless they are given.
#pragma once

#include "ops/common/quant.h"

namespace lz::ops::quantize_scaled {

enum Tensor { kInput, kScale, kZeroPoint, kTensorScale, kValues, kScaleOut };
enum Scalar { kDtype, kAxis, kGroupSize, kBlockRows, kScaleRule };

inline constexpr auto kVariants = std::to_array<Variant>({{"quantize"}});
inline constexpr auto kParams = std::to_array<Param>({
    TensorParam("input", "..., k", kFloats, "values to quantize; read as float32"),
    RequiredChoice("dtype", kQuantNames, kQuantDoc),
    OptionalTensor("scale", "*", kScaleDTypes,
                   "computed if not given; its shape decides which values share a scale: one element; or the input's "
                   "rank, each axis dividing the input's; or with `axis` one dimension"),
    KeywordOnly(OptionalInt("axis", "one scale for each index of this axis: a channel, a head")),
    KeywordOnly(Int("group_size", 0, "one scale for each group of this many values of the last axis")),
    KeywordOnly(
        Int("block_rows", 1, "with group_size: rows that share a scale, the blocks then being two-dimensional")),
    KeywordOnly(OptionalIndex("zero_point", "*", "of the scale's shape; added to the codes")),
    KeywordOnly(OptionalTensor("tensor_scale", "*", Mask(DType::kF32),
                               "nvfp4: the scale of the tensor, or of each row; quantize_nvfp4 computes it")),
    KeywordOnly(
        Choice("scale_rule", "ceil|floor", 0, "powers of two: the smallest with which nothing saturates, or OCP MX's")),
});
inline constexpr auto kOutputs = std::to_array<Output>({
    {.name = "values",
     .shape = "..., k / dtype[1, 1, 2, 2, 1, 1, 1, 1, 2, 2]",
     .dtype = "int8",
     .doc = "the codes",
     .dtype_choice = "dtype",
     .choice_dtypes = kQuantValueDTypes},
    {.name = "scale",
     .shape = "blocks(input; axis; block_rows; group_size - group_size * dtype[0, 0, 0, 0, 0, 0, 1, 1, 1, 1] + "
              "dtype[0, 0, 0, 0, 0, 0, 32, 32, 32, 16])",
     .dtype = "float32",
     .doc = "of the input's rank: 1 where an axis shares a scale, else the number of its blocks",
     .only_if = "!scale",
     .dtype_choice = "dtype",
     .choice_dtypes = kQuantScaleDTypes},
});
// The choice `dtype` under another name, for constraints: "dtype" there is the input's.
inline constexpr auto kDerived = std::to_array<DerivedFact>({{"format", "dtype"}});

inline Status Canonicalize(BoundArgs& args) {
  const lz_tensor &input = args.tensors[kInput], &scale = args.tensors[kScale];
  const int64_t format = args.scalars[kDtype].value.i;
  const QuantInfo& info = kQuantInfo[size_t(format)];
  const QuantShape shape = QuantShape::Of(input, 1);
  LZ_RETURN_IF_ERROR(CheckPacking(shape, info.pack));
  const bool powers = info.scales == kE8M0Scales;
  if (args.scalars[kScaleRule].value.i != 0 && (!powers || scale.ndim >= 0)) {
    return BadQuant("scale_rule", "ceil, unless e8m0 scales are computed", "floor", "leave it out");
  }
  LZ_RETURN_IF_ERROR(CheckAxis(args.scalars[kAxis], input.ndim));
  LZ_RETURN_IF_ERROR(CheckTensorScale(format, shape, args.tensors[kTensorScale], "tensor_scale"));
  if (args.tensors[kZeroPoint].ndim >= 0 && scale.ndim < 0) {
    return BadQuant("zero_point", "none without scale", "a tensor", "pass scale too, or call quantize_asymmetric");
  }
  LZ_RETURN_IF_ERROR(CheckZeroPoint(format, scale, args.tensors[kZeroPoint], "zero_point"));
  const int64_t group = args.scalars[kGroupSize].value.i;
  if (scale.ndim < 0)
    return CheckGroups(shape, args.scalars[kAxis], group, args.scalars[kBlockRows].value.i, info.group);
  if ((group != 0 && group != info.group) || args.scalars[kBlockRows].value.i != 1) {
    return BadQuant(group != 0 ? "group_size" : "block_rows", "none with scale, whose shape decides it", "a number",
                    "leave it out");
  }
  LZ_RETURN_IF_ERROR(CheckScaleDType(format, scale, "scale"));
  return CheckScale(shape, scale, "scale", AxisOf(args.scalars[kAxis]), info.group);
}

inline constexpr Contract kContract = {
    .name = "quantize",
    .summary = "Quantizes to int8, int4, FP8, MXFP8, MXFP4 or NVFP4; computes scales unless they are given.",
    .definition =
        "amax is the largest |x| of the values that share a scale s. float32 operations, each rounded: int8, int4 "
        "s = max(amax / M, 2^-126), M = 127, 7; fp8 s = max(amax, 1e-4) * (1 / M), M = 448, 57344; mxfp8, mxfp4 "
        "t = max(amax, floor) * (1 / M), floor 1e-4, for mxfp4 6 * 2^-126, M = 6: s is the smallest power of two that "
        "is not below t (scale_rule floor: 2^(floor(log2(max(amax, floor))) - floor(log2 M))); nvfp4 with g = 1 / "
        "tensor_scale: s = E4M3(amax * (g * (1 / 6))). Codes are rounded to nearest even and saturate: x / s, for "
        "nvfp4 x * min(1 / (s * tensor_scale), FLT_MAX); plus zero_point for integers, which then use their whole "
        "range. A block with NaN or infinity has the scale NaN. NaN has no code in integers and E2M1: 0. 4-bit values "
        "are stored two in a byte, the even element in the low half, int4 in two's complement",
    .source = "OCP MX 1.0; OCP 8-bit floating point 1.0; NVFP4: two-level scaling with 448 * 6 = 2688",
    .replaces = "scale = input.abs().amax() / 127; (input / scale).round().clamp(-127, 127).to(torch.int8)",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
    .derived = kDerived,
    .tolerance = {.compare = Compare::kExact},
    .canonicalize = &Canonicalize,
    .differentiable = false,
};

}  // namespace lz::ops::quantize_scaled
