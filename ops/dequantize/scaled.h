// dequantize: converts codes with scales to floats.
#pragma once

#include "ops/common/quant.h"

namespace lz::ops::dequantize_scaled {

enum Tensor { kValues, kScale, kZeroPoint, kTensorScale, kOutput };
enum Scalar { kFormat, kAxis, kDType };

inline constexpr auto kVariants = std::to_array<Variant>({{"dequantize"}});
inline constexpr auto kParams = std::to_array<Param>({
    TensorParam("values", "..., n", kValueDTypes, "codes, as quantize returns them"),
    TensorParam("scale", "*", kScaleDTypes,
                "one element; or the values' rank, each axis dividing theirs; or with `axis` one dimension"),
    RequiredChoice("format", kQuantNames, "format of the codes"),
    KeywordOnly(OptionalInt("axis", "axis of a one-dimensional scale")),
    KeywordOnly(OptionalIndex("zero_point", "*", "of the scale's shape; the code of 0")),
    KeywordOnly(OptionalTensor("tensor_scale", "*", Mask(DType::kF32), "nvfp4: the scale of the tensor or each row")),
    KeywordOnly(Choice("dtype", "float32|bfloat16|float16", 0, "dtype of the output")),
});
inline constexpr auto kOutputs = std::to_array<Output>({
    {.name = "output",
     .shape = "..., n * format[1, 1, 2, 2, 1, 1, 1, 1, 2, 2]",
     .dtype = "float32",
     .doc = "the values",
     .dtype_choice = "dtype"},
});

inline Status Canonicalize(BoundArgs& args) {
  const lz_tensor &values = args.tensors[kValues], &scale = args.tensors[kScale];
  const int64_t format = args.scalars[kFormat].value.i;
  const QuantInfo& info = kQuantInfo[size_t(format)];
  const QuantShape shape = QuantShape::Of(values, info.pack);
  LZ_RETURN_IF_ERROR(CheckValues(format, values, "values"));
  LZ_RETURN_IF_ERROR(CheckScaleDType(format, scale, "scale"));
  LZ_RETURN_IF_ERROR(CheckAxis(args.scalars[kAxis], values.ndim));
  LZ_RETURN_IF_ERROR(CheckScale(shape, scale, "scale", AxisOf(args.scalars[kAxis]), info.group));
  LZ_RETURN_IF_ERROR(CheckZeroPoint(format, scale, args.tensors[kZeroPoint], "zero_point"));
  return CheckTensorScale(format, shape, args.tensors[kTensorScale], "tensor_scale");
}

inline constexpr Contract kContract = {
    .name = "dequantize",
    .summary = "The values of int8, int4, FP8, MXFP8, MXFP4 and NVFP4 tensors.",
    .definition =
        "code * scale in float32, rounded; integers (code - zero_point) * scale; nvfp4 (code * scale) * tensor_scale, "
        "each product rounded; then rounded once to dtype. e8m0 scales are 2^(byte - 127), 255 is NaN. 4-bit codes are "
        "stored "
        "two in a byte, the even element in the low half, int4 in two's complement",
    .source = "OCP MX 1.0; OCP 8-bit floating point 1.0",
    .replaces = "(values.float() - zero_point) * scale",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
    .tolerance = {.compare = Compare::kExact},
    .canonicalize = &Canonicalize,
    .differentiable = false,
};

}  // namespace lz::ops::dequantize_scaled
