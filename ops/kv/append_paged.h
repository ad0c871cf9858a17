// kv.append_paged: writes new key and value rows to the slots of a paged cache, in place.
#pragma once

#include <array>

#include "ops/common/kv_rows.h"

namespace lz::ops::kv_append_paged {

enum Tensor { kKeyCache, kValueCache, kKey, kValue, kSlots, kKScale, kVScale };
enum Axis { kBlocks, kBlockSize, kHKV, kDK, kDV, kN };

inline constexpr auto kVariants = std::to_array<Variant>({{"kv.append_paged"}});
inline constexpr auto kParams = std::to_array<Param>({
    Mutated(WithLayout(TensorParam("key_cache", "blocks, block_size, h_kv, d_k", kv::kCacheDTypes, "key blocks"))),
    Mutated(WithLayout(SameDType(
        TensorParam("value_cache", "blocks, block_size, h_kv, d_v", kv::kCacheDTypes, "value blocks"), "key_cache"))),
    TensorParam("key", "n, h_kv, d_k", kFloats, "new key rows"),
    SameDType(TensorParam("value", "n, h_kv, d_v", kFloats, "new value rows"), "key"),
    TensorParam("slots", "n", kIndices, "block * block_size + offset for each row; negative: the row is skipped"),
    KeywordOnly(Broadcast(OptionalTensor("k_scale", "h_kv", Mask(DType::kF32), "scale of the stored keys; None: 1"))),
    KeywordOnly(Broadcast(OptionalTensor("v_scale", "h_kv", Mask(DType::kF32), "scale of the stored values; None: 1"))),
});

inline Status Canonicalize(BoundArgs& args) {
  LZ_RETURN_IF_ERROR(kv::CheckScale("k_scale", args.tensors[kKeyCache], args.tensors[kKScale]));
  return kv::CheckScale("v_scale", args.tensors[kValueCache], args.tensors[kVScale]);
}

inline constexpr Contract kContract = {
    .name = "kv_append_paged",
    .summary = "Writes new key and value rows into the slots of a paged cache, in place.",
    .definition =
        "key_cache[s / block_size, s % block_size, h, :] = key[i, h, :] / k_scale[h] for s = slots[i] >= 0, likewise "
        "for values; everything else is unchanged. Rows whose dtype is the cache's are copied bit for bit if there is "
        "no scale. Else they are divided in float32 and rounded once to nearest even; 8-bit values saturate (int8 to "
        "+-127, with 0 for NaN). A slot outside the cache is an error, and nothing is written. Slots that are not "
        "negative must differ: for equal ones any row may remain.",
    .source = "Kwon et al. 2023, arXiv:2309.06180, section 4.3",
    .replaces = "key_cache.view(-1, h_kv, d_k)[slots] = key; value_cache.view(-1, h_kv, d_v)[slots] = value",
    .variants = kVariants,
    .params = kParams,
    .outputs = {},
    .layouts = kv::kLayouts,
    .tolerance = {.compare = Compare::kExact},
    .canonicalize = &Canonicalize,
    .differentiable = false,
};

}  // namespace lz::ops::kv_append_paged
