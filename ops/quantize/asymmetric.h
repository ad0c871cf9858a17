// quantize.asymmetric: integers with zero points, computed from the values.
#pragma once

#include "ops/common/quant.h"

namespace lz::ops::quantize_asymmetric {

enum Tensor { kInput, kValues, kScale, kZeroPoint };
enum Scalar { kDtype, kAxis, kGroupSize, kBlockRows };

inline constexpr auto kVariants = std::to_array<Variant>({{"quantize.asymmetric"}});
inline constexpr auto kParams = std::to_array<Param>({
    TensorParam("input", "..., k", kFloats, "values to quantize; read as float32"),
    RequiredChoice("dtype", "int8|uint8|int4|uint4", "dtype of the codes, whose whole range is used"),
    KeywordOnly(OptionalInt("axis", "one scale for each index of this axis: a channel, a head")),
    KeywordOnly(Int("group_size", 0, "one scale for each group of this many values of the last axis")),
    KeywordOnly(
        Int("block_rows", 1, "with group_size: rows that share a scale, the blocks then being two-dimensional")),
});
inline constexpr std::string_view kBlocks = "blocks(input; axis; block_rows; group_size)";
inline constexpr auto kOutputs = std::to_array<Output>({
    {.name = "values",
     .shape = "..., k / dtype[1, 1, 2, 2]",
     .dtype = "int8",
     .doc = "the codes; 4-bit codes two in a byte, the even element in the low half",
     .dtype_choice = "dtype",
     .choice_dtypes = "int8|uint8|uint8|uint8"},
    {.name = "scale",
     .shape = kBlocks,
     .dtype = "float32",
     .doc = "of the input's rank: 1 where an axis shares a scale, else the number of its blocks"},
    {.name = "zero_point", .shape = kBlocks, .dtype = "int32", .doc = "the code of 0, one per scale"},
});
// The choice `dtype` under another name, for constraints: "dtype" there is the input's.
inline constexpr auto kDerived = std::to_array<DerivedFact>({{"format", "dtype"}});

inline Status Canonicalize(BoundArgs& args) {
  const QuantShape shape = QuantShape::Of(args.tensors[kInput], 1);
  LZ_RETURN_IF_ERROR(CheckPacking(shape, kQuantInfo[size_t(args.scalars[kDtype].value.i)].pack));
  LZ_RETURN_IF_ERROR(CheckAxis(args.scalars[kAxis], shape.ndim));
  return CheckGroups(shape, args.scalars[kAxis], args.scalars[kGroupSize].value.i, args.scalars[kBlockRows].value.i, 0);
}

inline constexpr Contract kContract = {
    .name = "quantize_asymmetric",
    .summary = "Quantizes to 8-bit or 4-bit integers with zero points.",
    .definition =
        "lo <= 0 <= hi are the smallest and largest of the values that share a scale and of 0; codes go from qmin to "
        "qmax. float32 operations, each rounded: s = max((hi - lo) / (qmax - qmin), 2^-126); zero_point = "
        "clamp(qmin - round(lo / s)); code = clamp(round(x / s) + zero_point), rounding to nearest even. A block with "
        "NaN or infinity has s = NaN, zero point 0 and codes 0",
    .source = "Jacob et al. 2018, Quantization and Training of Neural Networks, section 2.1",
    .replaces = "torch.quantize_per_tensor_dynamic and its kin",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
    .derived = kDerived,
    .tolerance = {.compare = Compare::kExact},
    .canonicalize = &Canonicalize,
    .differentiable = false,
};

}  // namespace lz::ops::quantize_asymmetric
