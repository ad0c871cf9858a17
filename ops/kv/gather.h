// kv.gather: reads rows of a paged cache, by slot.
#pragma once

#include <array>

#include "ops/common/kv_rows.h"

namespace lz::ops::kv_gather {

enum Tensor { kCache, kSlots, kScale, kOutput };
enum Scalar { kDType };
enum Axis { kBlocks, kBlockSize, kHKV, kD, kN };

inline constexpr auto kVariants = std::to_array<Variant>({{"kv.gather"}});
inline constexpr auto kParams = std::to_array<Param>({
    WithLayout(TensorParam("cache", "blocks, block_size, h_kv, d", kv::kCacheDTypes, "key or value blocks")),
    TensorParam("slots", "n", kIndices, "block * block_size + offset of each row; negative: a row of zeros"),
    KeywordOnly(Broadcast(OptionalTensor("scale", "h_kv", Mask(DType::kF32), "scale of the stored values; None: 1"))),
    KeywordOnly(Param{.name = "dtype",
                      .kind = ParamKind::kChoice,
                      .doc = "dtype of the result; None: the cache's",
                      .optional = true,
                      .choices = "float32|float64|float16|bfloat16"}),
});
inline constexpr auto kOutputs = std::to_array<Output>({
    {.name = "output", .shape = "n, h_kv, d", .dtype = "cache", .doc = "the rows", .dtype_choice = "dtype"},
});

inline Status Canonicalize(BoundArgs& args) {
  if (args.tensors[kScale].ndim < 0 || args.scalars[kDType].given) return {};
  return {StatusCode::kInvalidRequest,
          {"dtype", "a dtype of the result with a scale", "nothing", "pass the dtype of the scaled rows"}};
}

inline constexpr Contract kContract = {
    .name = "kv_gather",
    .summary = "Rows of a paged cache, by slot.",
    .definition =
        "output[i, h, :] = cache[s / block_size, s % block_size, h, :] for s = slots[i] >= 0, zeros for s < 0; bit "
        "for bit in the cache's dtype without a scale, else the product with scale[h] in float32, rounded once. Rows "
        "that are not listed are never read. A slot outside the cache is an error.",
    .source = "Kwon et al. 2023, arXiv:2309.06180, section 4.3",
    .replaces = "cache.view(-1, h_kv, d)[slots]",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
    .layouts = kv::kLayouts,
    .tolerance = {.compare = Compare::kExact},
    .canonicalize = &Canonicalize,
};

}  // namespace lz::ops::kv_gather
