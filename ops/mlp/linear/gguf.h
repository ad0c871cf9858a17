// mlp.linear.gguf: a matrix product with weights in GGUF's blocks, and a bias.
#pragma once

#include <array>
#include <string>

#include "ops/common/gguf.h"

namespace lz::ops::mlp_linear_gguf {
using namespace lz::ops::gguf;

enum Tensor { kInput, kWeight, kBias, kPacked, kOutput };
enum Scalar { kFormat, kActivations };
enum Activations { kAsGiven, kInt8 };

inline constexpr auto kVariants = std::to_array<Variant>({{"mlp.linear.gguf"}});
inline constexpr auto kParams = std::to_array<Param>({
    TensorParam("input", "..., k", kFloats, "rows to transform"),
    TensorParam("weight", "n, row_bytes", Mask(DType::kU8), "one row of blocks per output column, as in the file"),
    RequiredChoice("format", kFormatNames, "the blocks' format"),
    SameDType(OptionalTensor("bias", "n", kFloats, "added to every row; None means 0"), "input"),
    KeywordOnly(OptionalTensor("packed", "(n + 15) / 16, " LZ_GGUF_PACKED_BYTES, Mask(DType::kU8),
                               "the weight as linear_gguf_prepack returns it, read instead of `weight`")),
    KeywordOnly(Choice("activations", "input|int8", 0,
                       "factor of the weights: the input, or the input rounded to 8 "
                       "bits")),
});
inline constexpr auto kOutputs = std::to_array<Output>({
    {.name = "output", .shape = "..., n", .dtype = "input", .doc = "the rows of input @ weight^T + bias"},
});
inline constexpr auto kDerived = std::to_array<DerivedFact>({
    {"rows", "..."},  // the product of the leading axes
});
inline constexpr auto kNumericsClasses = std::to_array<std::string_view>({"w4a8-int"});

inline Status Canonicalize(BoundArgs& args) {
  const int64_t format = args.scalars[kFormat].value.i;
  const lz_tensor& input = args.tensors[kInput];
  LZ_RETURN_IF_ERROR(CheckRows(format, input.shape[input.ndim - 1], args.tensors[kWeight].shape[1], "input", "weight"));
  return args.tensors[kPacked].ndim < 0 ? Status() : CheckPackable(format, "packed");
}

inline constexpr Contract kContract = {
    .name = "linear_gguf",
    .summary = "Matrix product with weights as stored in a GGUF file, plus a bias.",
    .definition =
        "output[..., j] = sum_i a[..., i] * w[j, i] + bias[j], rounded once; w is what dequantize_gguf returns for "
        "the weight, before any rounding. a is the input; with activations=int8, for each 32 values of a row in "
        "float32: d = amax / 127, a = d * round(input * (127 / amax)), ties to even; 0 where amax is below 2^-120, "
        "NaN where a value is not finite. For an input in bf16, numbers and their products with codes below 2^-126 "
        "may count as 0 before they are scaled",
    .source = "definition; rounding to 8 bits: block_q8_0 of ggml's quantize_row_q8_0_ref, d kept in float32",
    .replaces = "dequantize_gguf(weight), then torch.nn.functional.linear(input, weight, bias)",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
    .derived = kDerived,
    .tolerance = {.compare = Compare::kRowMax},
    .numerics_classes = kNumericsClasses,
    .canonicalize = &Canonicalize,
    .differentiable = false,
};

}  // namespace lz::ops::mlp_linear_gguf
