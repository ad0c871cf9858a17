// quantize.nvfp4: FP4 values with E4M3 scales of 16 values and a float32 scale of the tensor, all computed.
#pragma once

#include "ops/common/quant.h"

namespace lz::ops::quantize_nvfp4 {

enum Tensor { kInput, kValues, kScale, kTensorScale };
enum Scalar { kPerRow };
inline constexpr int64_t kGroup = 16;

inline constexpr auto kVariants = std::to_array<Variant>({{"quantize.nvfp4"}});
inline constexpr auto kParams = std::to_array<Param>({
    TensorParam("input", "..., k", kFloats, "values to quantize; read as float32; k a multiple of 16"),
    KeywordOnly(Bool("per_row", false, "a tensor scale for each row instead of one")),
});
inline constexpr auto kOutputs = std::to_array<Output>({
    {.name = "values",
     .shape = "..., k / 2",
     .dtype = "uint8",
     .doc = "E2M1 codes, two in a byte, the even element in the low half"},
    {.name = "scale", .shape = "..., k / 16", .dtype = "float8_e4m3fn", .doc = "one per 16 values"},
    {.name = "tensor_scale",
     .shape = "blocks(input; ; 1; k * per_row)",
     .dtype = "float32",
     .doc = "of the input's rank: one element, or one for each row"},
});

inline Status Canonicalize(BoundArgs& args) {
  const lz_tensor& input = args.tensors[kInput];
  const int64_t k = input.shape[input.ndim - 1];
  if (k % kGroup == 0) return {};
  return BadQuant("input", "a last axis that is a multiple of 16", std::to_string(k), "pad it");
}

inline constexpr Contract kContract = {
    .name = "quantize_nvfp4",
    .summary = "Quantizes to NVFP4 with both levels of scales.",
    .definition =
        "float32 operations, each rounded, A the largest finite |x| of the tensor (or row), amax that of 16 values: "
        "g = min(2688 / A, FLT_MAX), 1 if A = 0; tensor_scale = 1 / g; scale = E4M3(amax * (g * (1 / 6))); code = "
        "E2M1(x * min(1 / (scale * tensor_scale), FLT_MAX)), to nearest even, saturating. 16 values among which one is "
        "NaN or infinite have the scale NaN. A value is (code * scale) * tensor_scale",
    .source = "NVFP4: two-level scaling with 448 * 6 = 2688",
    .replaces = "two passes of amax, divisions and table look-ups",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
    .tolerance = {.compare = Compare::kExact},
    .canonicalize = &Canonicalize,
    .differentiable = false,
};

}  // namespace lz::ops::quantize_nvfp4
