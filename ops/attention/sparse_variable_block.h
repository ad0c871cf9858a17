// attention.sparse.variable_block: attention in which a boolean map selects blocks of keys for blocks of queries; the
// sizes of the blocks vary.
//
// Axes: m queries, n keys, mb / nb blocks of queries and keys. Each KV head has its own map and its own sizes.
#pragma once

#include "ops/common/attention.h"

namespace lz::ops::attention_sparse_variable_block {

enum Tensor { kQ, kK, kV, kBlockMask, kRowSizes, kColSizes, kOutput, kLse };
enum Scalar { kSmScale, kReturnLse };
enum Axis { kM, kHQ, kDQK, kN, kHKV, kDV, kMB, kNB };

inline constexpr auto kVariants = std::to_array<Variant>({{"attention.sparse.variable_block"}});
inline constexpr auto kParams = std::to_array<Param>({
    TensorParam("q", "m, h_q, d_qk", kFloats, "queries"),
    SameDType(TensorParam("k", "n, h_kv, d_qk", kFloats, "keys"), "q"),
    SameDType(TensorParam("v", "n, h_kv, d_v", kFloats, "values"), "q"),
    TensorParam("block_mask", "h_kv, mb, nb", Mask(DType::kBool), "True: the queries of the block see the keys"),
    IndexTensor("row_sizes", "h_kv, mb", "queries of each block; they add up to m"),
    IndexTensor("col_sizes", "h_kv, nb", "keys of each block; they add up to n"),
    attention::Scale("sm_scale"),
    attention::ReturnLse(),
});
inline constexpr auto kOutputs = std::to_array<Output>({
    {.name = "output", .shape = "m, h_q, d_v", .dtype = "q", .doc = "weighted values"},
    attention::Lse("m, h_q"),
});
inline constexpr auto kDerived = std::to_array<DerivedFact>({{"group", "h_q / h_kv"}});

inline Status Canonicalize(BoundArgs& args) {
  LZ_RETURN_IF_ERROR(attention::CheckHeads("k", args.axes[kHQ], args.axes[kHKV]));
  return attention::ResolveScale("sm_scale", args.axes[kDQK], args.scalars[kSmScale]);
}

inline constexpr Contract kContract = {
    .name = "variable_block_sparse_attention",
    .summary = "Attention in which blocks of queries see blocks of keys, of different sizes, by a map per KV head.",
    .definition =
        "Block r of KV head g holds row_sizes[g, r] queries after those of the blocks before it, block c col_sizes[g, "
        "c] keys. With g = h / (h_q / h_kv), query i of head h in block r sees the keys of every block c with "
        "block_mask[g, r, c]. z = sm_scale * (q . k), softmax and lse over the seen keys; a query that sees none has "
        "0 and -inf; keys that a query does not see are never read for it. Only the map decides: there is no causal, "
        "window, softcap, sink, alibi_slopes or attn_mask. Sizes are valid if none is negative and the sizes of each "
        "KV head add up to m and n; on others the reference fails with code 1 and writes nothing, other kernels may "
        "do the same or stay within the tensors",
    .source = "arXiv:1706.03762, eq. 1, with block visibility (arXiv:1904.10509)",
    .replaces = "torch.nn.functional.scaled_dot_product_attention with the blocks expanded to a boolean mask",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
    .derived = kDerived,
    .numerics_classes = attention::kNumericsClasses,
    .canonicalize = &Canonicalize,
};

}  // namespace lz::ops::attention_sparse_variable_block
