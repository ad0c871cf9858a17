// attention.sparse.block: attention in which each block of R queries attends to a list of blocks of C keys (BSR form).
//
// Axes: m queries, n keys, offsets = m / R + 1, nnz listed blocks. There is no causal mask: only the block
// list decides.
#pragma once

#include "ops/common/attention.h"

namespace lz::ops::attention_sparse_block {

enum Tensor { kQ, kK, kV, kIndptr, kBlockIndices, kOutput, kLse };
enum Scalar { kR, kC, kSmScale, kReturnLse };
enum Axis { kM, kHQ, kDQK, kN, kHKV, kDV, kOffsets, kNnz };

inline constexpr auto kVariants = std::to_array<Variant>({{"attention.sparse.block"}});
inline constexpr auto kParams = std::to_array<Param>({
    TensorParam("q", "m, h_q, d_qk", kFloats, "queries"),
    SameDType(TensorParam("k", "n, h_kv, d_qk", kFloats, "keys"), "q"),
    SameDType(TensorParam("v", "n, h_kv, d_v", kFloats, "values"), "q"),
    IndexTensor("indptr", "offsets", "first listed block of each block of queries, then the end"),
    IndexTensor("indices", "nnz", "visible key blocks"),
    RequiredInt("R", "queries per block"),
    RequiredInt("C", "keys per block"),
    attention::Scale("sm_scale"),
    attention::ReturnLse(),
});
inline constexpr auto kOutputs = std::to_array<Output>({
    {.name = "output", .shape = "m, h_q, d_v", .dtype = "q", .doc = "weighted values"},
    attention::Lse("m, h_q"),
});
inline constexpr auto kDerived = std::to_array<DerivedFact>({{"group", "h_q / h_kv"}});

inline Status CheckBlock(std::string_view name, int64_t block, std::string_view axis, int64_t size) {
  if (block > 0 && size % block == 0) return {};
  return attention::Invalid(name, "a positive divisor of the " + std::to_string(size) + " rows of " + std::string(axis),
                            std::to_string(block), "pad the rows to whole blocks, or choose another block size");
}

inline Status Canonicalize(BoundArgs& args) {
  const int64_t m = args.axes[kM], r = args.scalars[kR].value.i;
  LZ_RETURN_IF_ERROR(CheckBlock("R", r, "q", m));
  LZ_RETURN_IF_ERROR(CheckBlock("C", args.scalars[kC].value.i, "k", args.axes[kN]));
  if (args.axes[kOffsets] != m / r + 1) {
    return attention::Invalid("indptr", std::to_string(m / r + 1) + " offsets, m / R + 1",
                              std::to_string(args.axes[kOffsets]), "pass one offset per block of queries and the end");
  }
  LZ_RETURN_IF_ERROR(attention::CheckHeads("k", args.axes[kHQ], args.axes[kHKV]));
  return attention::ResolveScale("sm_scale", args.axes[kDQK], args.scalars[kSmScale]);
}

inline constexpr Contract kContract = {
    .name = "block_sparse_attention",
    .summary = "Attention in which blocks of queries see listed blocks of keys (BSR).",
    .definition =
        "Query i, in block i / R, sees the keys c C up to (c + 1) C for every c in indices[indptr[i/R] .. indptr[i/R + "
        "1]); a block listed twice counts twice. z(i,j) = sm_scale * (q_i . k_j); output_i = sum over the seen keys of "
        "softmax(z)_j v_j; lse = ln sum exp(z). A block of queries without a listed block has 0 and -inf. Keys that "
        "no list names are never read. h_q is a multiple of h_kv, m of R, n of C. Index data is valid if indptr starts "
        "at 0, never decreases and ends at most at nnz, and every used index is in [0, n / C); on invalid index data "
        "the reference fails with code 1 and writes nothing, other kernels may do the same or stay within the tensors.",
    .source = "arXiv:1706.03762, eq. 1, with block visibility (arXiv:1904.10509)",
    .replaces = "torch.nn.functional.scaled_dot_product_attention with the blocks expanded to a boolean mask",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
    .derived = kDerived,
    .numerics_classes = attention::kNumericsClasses,
    .canonicalize = &Canonicalize,
};

}  // namespace lz::ops::attention_sparse_block
