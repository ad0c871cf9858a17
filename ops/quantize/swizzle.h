// quantize.swizzle: block scales to the 128x4 order of tensor cores.
#pragma once

#include <array>

#include "core/contract.h"
#include "ops/common/swizzle.h"

namespace lz::ops::quantize_swizzle {

enum Tensor { kScale, kOutput };

inline constexpr auto kVariants = std::to_array<Variant>({{"quantize.swizzle"}});
inline constexpr auto kParams = std::to_array<Param>({
    TensorParam("scale", "..., r, c", kScaleBytes, "scales of r rows, c blocks each"),
});
inline constexpr auto kOutputs = std::to_array<Output>({
    {.name = "output",
     .shape = "..., (r + 127) / 128 * ((c + 3) / 4) * 512",
     .dtype = "scale",
     .doc = "the bytes in tiles of 128 rows and 4 blocks; the padding of r to 128 and c to 4 is 0"},
});

inline constexpr Contract kContract = {
    .name = "swizzle_scales",
    .summary = "Puts block scales into the 128x4 order that block-scaled matrix products read.",
    .definition =
        "scale[r, c] goes to ((r / 128) * ceil(columns / 4) + c / 4) * 512 + (r % 32) * 16 + "
        "((r % 128) / 32) * 4 + c % 4; leading axes stay; padding is 0",
    .source = "cuBLASLt documentation, 1D block scaling factors layout",
    .replaces = "a chain of pad, view, permute and reshape",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
    .tolerance = {.compare = Compare::kExact},
    .differentiable = false,
};

}  // namespace lz::ops::quantize_swizzle
