// elementwise.cast: converts between float dtypes.
#pragma once

#include <array>

#include "core/contract.h"

namespace lz::ops::elementwise_cast {

enum Tensor { kInput, kOutput };
enum Scalar { kDType };

inline constexpr auto kVariants = std::to_array<Variant>({{"elementwise.cast"}});
inline constexpr auto kParams = std::to_array<Param>({
    TensorParam("input", "...", kFloats, "the numbers"),
    RequiredChoice("dtype", "float32|float64|float16|bfloat16", "dtype of the output"),
});
inline constexpr auto kOutputs = std::to_array<Output>({
    {.name = "output", .shape = "...", .dtype = "input", .doc = "same shape as input", .dtype_choice = "dtype"},
});

inline constexpr Contract kContract = {
    .name = "cast",
    .summary = "Converts between the float dtypes.",
    .definition =
        "output = input, rounded once to nearest, ties to even; beyond the largest finite number an infinity; "
        "subnormal numbers are kept; NaN stays NaN",
    .source = "IEEE 754-2019, section 4.3.1; bfloat16 as the upper half of binary32",
    .replaces = "input.to(dtype)",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
    .tolerance = {.compare = Compare::kExact},
};

}  // namespace lz::ops::elementwise_cast
