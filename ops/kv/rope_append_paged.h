// kv.rope_append_paged: rotates queries and keys by their positions, and stores keys and values in a paged cache.
#pragma once

#include <array>
#include <string>

#include "ops/common/kv_rows.h"
#include "ops/posenc/rope.h"

namespace lz::ops::kv_rope_append_paged {

enum Tensor {
  kQuery,
  kKey,
  kValue,
  kCos,
  kSin,
  kKeyCache,
  kValueCache,
  kSlots,
  kPositionIds,
  kKScale,
  kVScale,
  kOutput
};
enum Scalar { kInterleaved, kRotaryDim };
enum Axis { kN, kH, kD, kHKV, kDV, kT, kW, kBlocks, kBlockSize };

inline constexpr auto kVariants = std::to_array<Variant>({{"kv.rope_append_paged"}});
inline constexpr auto kParams = std::to_array<Param>({
    TensorParam("query", "n, h, d", kFloats, "queries to rotate"),
    SameDType(TensorParam("key", "n, h_kv, d", kFloats, "new key rows, not yet rotated"), "query"),
    SameDType(TensorParam("value", "n, h_kv, d_v", kFloats, "new value rows"), "query"),
    TensorParam("cos", "t, w", kFloats, "cosines; w: a value for each rotated column or each pair"),
    SameDType(TensorParam("sin", "t, w", kFloats, "sines: like cos"), "cos"),
    Mutated(WithLayout(TensorParam("key_cache", "blocks, block_size, h_kv, d", kv::kCacheDTypes, "key blocks"))),
    Mutated(WithLayout(SameDType(
        TensorParam("value_cache", "blocks, block_size, h_kv, d_v", kv::kCacheDTypes, "value blocks"), "key_cache"))),
    TensorParam("slots", "n", kIndices, "block * block_size + offset for each row; negative: it is not stored"),
    KeywordOnly(OptionalTensor("position_ids", "n", kIndices, "each row's row of the tables; None: t is n")),
    KeywordOnly(Bool("interleaved", false, "pairs are columns 2 i, 2 i + 1 instead of i, i + r / 2")),
    KeywordOnly(OptionalInt("rotary_dim", "rotated columns r, the first ones; None: from the tables' width")),
    KeywordOnly(Broadcast(OptionalTensor("k_scale", "h_kv", Mask(DType::kF32), "scale of the stored keys; None: 1"))),
    KeywordOnly(Broadcast(OptionalTensor("v_scale", "h_kv", Mask(DType::kF32), "scale of the stored values; None: 1"))),
});
inline constexpr auto kOutputs = std::to_array<Output>({
    {.name = "output", .shape = "n, h, d", .dtype = "query", .doc = "rotated queries", .may_alias = "query"},
});

inline Status Canonicalize(BoundArgs& args) {
  LZ_RETURN_IF_ERROR(kv::CheckScale("k_scale", args.tensors[kKeyCache], args.tensors[kKScale]));
  LZ_RETURN_IF_ERROR(kv::CheckScale("v_scale", args.tensors[kValueCache], args.tensors[kVScale]));
  if (args.tensors[kPositionIds].ndim < 0 && args.axes[kT] != args.axes[kN]) {
    return {StatusCode::kInvalidRequest,
            {"cos", std::to_string(args.axes[kN]) + " rows, one for each query", std::to_string(args.axes[kT]),
             "index the tables by position first, or pass position_ids"}};
  }
  return posenc_rope::ResolveRotaryDim(args.axes[kD], args.axes[kW], args.scalars[kRotaryDim]);
}

inline constexpr Contract kContract = {
    .name = "kv_rope_append_paged",
    .summary = "Rotates queries and new keys by their positions, and writes keys and values into a paged cache.",
    .definition =
        "output = rope(query), and kv_append_paged(key_cache, value_cache, rope(key), value, slots) with the same "
        "scales, where the tables' row of row i is position_ids[i], or i. Products and sums of rotated keys are each "
        "rounded to float32 (of float64 keys to float64), the result to the dtype of key, and then stored: 8-bit "
        "caches get the same codes from every kernel. output may alias query. A slot outside the cache or a position "
        "outside the tables is an error, and nothing is written. Slots that are not negative must differ: for equal "
        "ones any row may remain.",
    .source = "Su et al. 2021, arXiv:2104.09864, eq. 34; Kwon et al. 2023, arXiv:2309.06180, section 4.3",
    .replaces = "rope of query and of key, then kv_append_paged",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
    .layouts = kv::kLayouts,
    .canonicalize = &Canonicalize,
    .differentiable = false,
};

}  // namespace lz::ops::kv_rope_append_paged
