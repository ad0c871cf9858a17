// quantize.unswizzle: block scales from the 128x4 order of tensor cores.
#pragma once

#include <array>
#include <string>

#include "core/contract.h"
#include "ops/common/swizzle.h"

namespace lz::ops::quantize_unswizzle {

enum Tensor { kScale, kOutput };
enum Scalar { kRows, kColumns };

inline constexpr auto kVariants = std::to_array<Variant>({{"quantize.unswizzle"}});
inline constexpr auto kParams = std::to_array<Param>({
    TensorParam("scale", "..., (rows + 127) / 128 * ((columns + 3) / 4) * 512", kScaleBytes,
                "scales as swizzle_scales returns them"),
    RequiredInt("rows", "of the result"),
    RequiredInt("columns", "of the result: blocks of a row"),
});
inline constexpr auto kOutputs = std::to_array<Output>({
    {.name = "output", .shape = "..., rows, columns", .dtype = "scale", .doc = "the scales, row by row"},
});

inline Status Canonicalize(BoundArgs& args) {
  for (const Scalar i : {kRows, kColumns}) {
    const int64_t n = args.scalars[i].value.i;
    if (n >= 0) continue;
    return Status(
        StatusCode::kInvalidRequest,
        {.field = i == kRows ? "rows" : "columns", .wanted = "a size of at least 0", .got = std::to_string(n)});
  }
  return {};
}

inline constexpr Contract kContract = {
    .name = "unswizzle_scales",
    .summary = "Takes block scales out of the 128x4 order of block-scaled matrix products.",
    .definition =
        "output[r, c] = scale[((r / 128) * ceil(columns / 4) + c / 4) * 512 + (r % 32) * 16 + "
        "((r % 128) / 32) * 4 + c % 4]; leading axes stay; padding is not read",
    .source = "cuBLASLt documentation, 1D block scaling factors layout",
    .replaces = "a chain of view, permute, reshape and slices",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
    .tolerance = {.compare = Compare::kExact},
    .canonicalize = &Canonicalize,
    .differentiable = false,
};

}  // namespace lz::ops::quantize_unswizzle
