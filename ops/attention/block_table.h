// attention.{standard,gqa}.decode.block_table: one query per sequence over a paged cache with a table of blocks.
//
// Sequence s reads its first context_lens[s] keys: key j is in block block_tables[s][j / block_size], slot j %
// block_size. Table entries past the last block in use may have any value (-1 is common).
#pragma once

#include "ops/common/attention.h"

namespace lz::ops::attention_block_table {

enum Tensor {
  kQuery,
  kKeyCache,
  kValueCache,
  kBlockTables,
  kContextLens,
  kSinks,
  kAlibiSlopes,
  kKScale,
  kVScale,
  kOutput,
  kLse
};
enum Scalar { kScale, kWindow, kSoftcap, kReturnLse };
enum Axis { kB, kHQ, kDQK, kBlocks, kBlockSize, kHKV, kDV, kMaxBlocks };

inline constexpr auto kStandard = std::to_array<Condition>({{"group", Rel::kEq, 1}});
inline constexpr auto kVariants = std::to_array<Variant>({
    {"attention.standard.decode.block_table", kStandard},
    {"attention.gqa.decode.block_table"},
});

inline constexpr auto kParams = std::to_array<Param>({
    TensorParam("query", "b, 1, h_q, d_qk", kFloats, "one query per sequence, the last position"),
    TensorParam("key_cache", "blocks, block_size, h_kv, d_qk", attention::kScaledCacheDTypes, "key blocks"),
    SameDType(
        TensorParam("value_cache", "blocks, block_size, h_kv, d_v", attention::kScaledCacheDTypes, "value blocks"),
        "key_cache"),
    IndexTensor("block_tables", "b, max_blocks", "block numbers of each sequence, in order"),
    IndexTensor("context_lens", "b", "keys of each sequence, the query's own included"),
    attention::Scale("scale"),
    attention::Window(),
    attention::SoftcapParam(),
    attention::Sinks(),
    attention::AlibiSlopes(),
    attention::KScale(),
    attention::VScale(),
    attention::ReturnLse(),
});
inline constexpr auto kOutputs = std::to_array<Output>({
    {.name = "output", .shape = "b, 1, h_q, d_v", .dtype = "query", .doc = "weighted values"},
    attention::Lse("b, h_q"),
});
inline constexpr auto kDerived = std::to_array<DerivedFact>({{"group", "h_q / h_kv"}});

inline Status Canonicalize(BoundArgs& args) {
  LZ_RETURN_IF_ERROR(attention::CheckScales(args.tensors[kKeyCache], args.tensors[kKScale], args.tensors[kVScale]));
  LZ_RETURN_IF_ERROR(attention::CheckHeads("key_cache", args.axes[kHQ], args.axes[kHKV]));
  LZ_RETURN_IF_ERROR(attention::ResolveScale("scale", args.axes[kDQK], args.scalars[kScale]));
  LZ_RETURN_IF_ERROR(attention::ResolveWindow(args.scalars[kWindow]));
  return attention::ResolveSoftcap(args.scalars[kSoftcap]);
}

inline constexpr Contract kContract = {
    .name = "paged_attention",
    .summary = "Decode attention over a paged cache whose blocks are listed in a padded table.",
    .definition =
        "With L = context_lens[s], key j < L is in block block_tables[s][j / block_size], slot j % block_size. The "
        "query is at position L - 1 and sees keys j > L - 1 - window, all without a window; logits, softcap, sinks, "
        "empty rows (L = 0) and lse as in `attention`, k_scale and v_scale as in `paged_decode_attention`. Table "
        "entries and slots from L on are never read, whatever they hold. Index data is valid if 0 <= L <= max_blocks * "
        "block_size and every block that holds a visible key exists; on invalid index data the reference fails with "
        "code 1 and writes nothing, other kernels may do the same or stay within the tensors.",
    .source = "Kwon et al. 2023, arXiv:2309.06180",
    .replaces = "gathering the blocks, then torch.nn.functional.scaled_dot_product_attention",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
    .derived = kDerived,
    .numerics_classes = attention::kNumericsClasses,
    .canonicalize = &Canonicalize,
};

}  // namespace lz::ops::attention_block_table
