// mlp.linear.quantized: a matrix product with quantized weights and their scales, and a bias.
#pragma once

#include "ops/common/quant.h"

namespace lz::ops::mlp_linear_quantized {

enum Tensor { kInput, kWeight, kWeightScale, kBias, kZeroPoint, kTensorScale, kPacked, kOutput };
enum Scalar { kFormat };

inline constexpr auto kVariants = std::to_array<Variant>({{"mlp.linear.quantized"}});
inline constexpr auto kParams = std::to_array<Param>({
    TensorParam("input", "..., k", kFloats, "rows to transform"),
    TensorParam("weight", "n, k / format[1, 1, 2, 2, 1, 1, 1, 1, 2, 2]", kValueDTypes,
                "one row of k codes per output column, as quantize returns them"),
    TensorParam("weight_scale", "scale_rows, scale_columns", kScaleDTypes,
                "one for each block of n / scale_rows rows and k / scale_columns columns"),
    RequiredChoice("format", kQuantNames, "format of the codes"),
    SameDType(OptionalTensor("bias", "n", kFloats, "added to every row; None means 0"), "input"),
    KeywordOnly(OptionalIndex("zero_point", "scale_rows, scale_columns", "integers: the code of 0")),
    KeywordOnly(OptionalTensor("tensor_scale", "*", Mask(DType::kF32), "nvfp4: the scale of the tensor or each row")),
    KeywordOnly(OptionalTensor("packed", "n, k / 2", Mask(DType::kU8),
                               "4-bit formats: the weight as linear_prepack returns it, read instead of `weight`")),
});
inline constexpr auto kOutputs = std::to_array<Output>({
    {.name = "output", .shape = "..., n", .dtype = "input", .doc = "the rows of input @ weight^T + bias"},
});
inline constexpr auto kDerived = std::to_array<DerivedFact>({
    {"rows", "..."},                  // the product of the leading axes
    {"group", "k / scale_columns"},   // values of a row that share a scale
    {"row_block", "n / scale_rows"},  // rows that share a scale
});

inline Status Canonicalize(BoundArgs& args) {
  const lz_tensor &weight = args.tensors[kWeight], &scale = args.tensors[kWeightScale];
  const int64_t format = args.scalars[kFormat].value.i;
  const QuantInfo& info = kQuantInfo[size_t(format)];
  const QuantShape shape = QuantShape::Of(weight, info.pack);
  LZ_RETURN_IF_ERROR(CheckValues(format, weight, "weight"));
  const int64_t k = args.tensors[kInput].shape[args.tensors[kInput].ndim - 1];
  if (k != shape.size[1]) {
    return BadQuant("input", "a last axis of " + std::to_string(shape.size[1]) + ", as the weight", std::to_string(k),
                    "4-bit weights have an even number of values: pad the input");
  }
  LZ_RETURN_IF_ERROR(CheckScaleDType(format, scale, "weight_scale"));
  LZ_RETURN_IF_ERROR(CheckScale(shape, scale, "weight_scale", std::nullopt, info.group));
  LZ_RETURN_IF_ERROR(CheckZeroPoint(format, scale, args.tensors[kZeroPoint], "zero_point"));
  LZ_RETURN_IF_ERROR(CheckTensorScale(format, shape, args.tensors[kTensorScale], "tensor_scale"));
  if (args.tensors[kPacked].ndim < 0 || (info.pack == 2 && shape.size[1] % 32 == 0)) return {};
  return BadQuant("packed", "none, unless the codes have 4 bits and k is a multiple of 32", "a tensor", "leave it out");
}

inline constexpr Contract kContract = {
    .name = "linear_quantized",
    .summary = "Matrix product with int8, int4, FP8, MXFP8, MXFP4 or NVFP4 weights, plus a bias.",
    .definition =
        "output[..., j] = sum_i input[..., i] * w[j, i] + bias[j], rounded once; w is what dequantize returns for "
        "weight, weight_scale, zero_point and tensor_scale; for an input in bf16, numbers and their products with "
        "codes below 2^-126 may count as 0 before they are scaled",
    .source = "definition",
    .replaces = "dequantizing the weight, then torch.nn.functional.linear(input, weight, bias)",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
    .derived = kDerived,
    .tolerance = {.compare = Compare::kRowMax},
    .canonicalize = &Canonicalize,
};

}  // namespace lz::ops::mlp_linear_quantized
