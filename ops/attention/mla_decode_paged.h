// attention.mla.decode.paged: decode of multi-head latent attention over a paged cache of compressed entries.
//
// One compressed entry (d_ckv values) is key and value of all heads; next to it is the rotated part of the key (d_kpe).
// The query is already multiplied by the key's up projection (absorbed form), so the output is in latent space.
#pragma once

#include "ops/common/attention.h"

namespace lz::ops::attention_mla_decode_paged {

enum Tensor { kQNope, kQPe, kCkvCache, kKpeCache, kKVIndptr, kKVIndices, kKVLastPageLen, kOutput, kLse };
enum Scalar { kSmScale, kReturnLse };
enum Axis { kB, kH, kDCkv, kDKpe, kPages, kPageSize, kNumIndices };

inline constexpr auto kVariants = std::to_array<Variant>({{"attention.mla.decode.paged"}});
inline constexpr auto kParams = std::to_array<Param>({
    TensorParam("q_nope", "b, h, d_ckv", kFloats, "queries in latent space, without position"),
    SameDType(TensorParam("q_pe", "b, h, d_kpe", kFloats, "rotated part of the queries"), "q_nope"),
    TensorParam("ckv_cache", "pages, page_size, d_ckv", attention::kCacheDTypes, "compressed entries: keys and values"),
    SameDType(TensorParam("kpe_cache", "pages, page_size, d_kpe", attention::kCacheDTypes, "rotated parts of the keys"),
              "ckv_cache"),
    attention::KVIndptr(),
    attention::KVIndices(),
    attention::KVLastPageLen(),
    RequiredFloat("sm_scale", "factor of the logits: 1/sqrt of the head dimension before absorption"),
    attention::ReturnLse(),
});
inline constexpr auto kOutputs = std::to_array<Output>({
    {.name = "output", .shape = "b, h, d_ckv", .dtype = "q_nope", .doc = "weighted compressed entries"},
    attention::Lse("b, h"),
});

inline Status Canonicalize(BoundArgs& args) {
  return attention::ResolveScale("sm_scale", args.axes[kDCkv] + args.axes[kDKpe], args.scalars[kSmScale]);
}

inline constexpr Contract kContract = {
    .name = "mla_decode_paged",
    .summary = "Decode of multi-head latent attention over a paged cache of compressed entries.",
    .definition =
        "Pages and lengths as in `paged_decode_attention`, validity and the result of invalid index data too. For the "
        "entries j of a sequence: z_j = sm_scale * (q_nope . ckv_j + q_pe . kpe_j); output = sum softmax(z)_j ckv_j; "
        "lse = ln sum exp(z_j). A sequence without entries has 0 and -inf.",
    .source = "DeepSeek-V2, arXiv:2405.04434, section 2.1, absorbed form",
    .replaces = "gathering the pages, then two matrix products and a softmax in torch",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
    .numerics_classes = attention::kNumericsClasses,
    .canonicalize = &Canonicalize,
};

}  // namespace lz::ops::attention_mla_decode_paged
