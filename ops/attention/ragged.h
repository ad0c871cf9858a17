// attention.{standard,gqa}.prefill.ragged: attention over packed sequences of different lengths.
//
// Axes: total_q / total_kv packed tokens, offsets = number of sequences + 1. Row i of a sequence with n_q queries and
// n_kv keys has position p = i + n_kv - n_q (bottom-right alignment, per sequence).
#pragma once

#include "ops/common/attention.h"

namespace lz::ops::attention_ragged {

enum Tensor { kQuery, kKey, kValue, kCuSeqlensQ, kCuSeqlensKV, kSinks, kAlibiSlopes, kOutput, kLse };
enum Scalar { kCausal, kScale, kWindow, kSoftcap, kMaxSeqlenQ, kMaxSeqlenKV, kReturnLse };
enum Axis { kTotalQ, kHQ, kDQK, kTotalKV, kHKV, kDV, kOffsets };

inline constexpr auto kStandard = std::to_array<Condition>({{"group", Rel::kEq, 1}});
inline constexpr auto kVariants = std::to_array<Variant>({
    {"attention.standard.prefill.ragged", kStandard},
    {"attention.gqa.prefill.ragged"},
});

inline constexpr auto kParams = std::to_array<Param>({
    TensorParam("query", "total_q, h_q, d_qk", kFloats, "packed queries"),
    SameDType(TensorParam("key", "total_kv, h_kv, d_qk", kFloats, "packed keys"), "query"),
    SameDType(TensorParam("value", "total_kv, h_kv, d_v", kFloats, "packed values"), "query"),
    IndexTensor("cu_seqlens_q", "offsets", "first query of each sequence, then the end"),
    IndexTensor("cu_seqlens_kv", "offsets", "first key of each sequence, then the end"),
    KeywordOnly(Bool("causal", true, "mask keys after the row's position")),
    KeywordOnly(attention::Scale("scale")),
    attention::Window(),
    attention::SoftcapParam(),
    attention::Sinks(),
    attention::AlibiSlopes(),
    KeywordOnly(OptionalInt("max_seqlen_q", "upper bound of the queries of one sequence; affects grid sizes only")),
    KeywordOnly(OptionalInt("max_seqlen_kv", "upper bound of the keys of one sequence; affects grid sizes only")),
    attention::ReturnLse(),
});
inline constexpr auto kOutputs = std::to_array<Output>({
    {.name = "output", .shape = "total_q, h_q, d_v", .dtype = "query", .doc = "weighted values"},
    attention::Lse("total_q, h_q"),
});
inline constexpr auto kDerived = std::to_array<DerivedFact>({{"group", "h_q / h_kv"}});

inline Status CheckBound(std::string_view name, lz_scalar& bound, int64_t total) {
  if (!bound.given) bound = {.value = {.i = total}, .given = 1};
  if (bound.value.i >= 0) return {};
  return attention::Invalid(name, "a length >= 0", std::to_string(bound.value.i), "leave it out if it is not known");
}

inline Status Canonicalize(BoundArgs& args) {
  if (args.axes[kOffsets] < 1) {
    return attention::Invalid("cu_seqlens_q", "number of sequences + 1 offsets", "0",
                              "an empty batch is the offsets [0]");
  }
  LZ_RETURN_IF_ERROR(CheckBound("max_seqlen_q", args.scalars[kMaxSeqlenQ], args.axes[kTotalQ]));
  LZ_RETURN_IF_ERROR(CheckBound("max_seqlen_kv", args.scalars[kMaxSeqlenKV], args.axes[kTotalKV]));
  LZ_RETURN_IF_ERROR(attention::CheckHeads("key", args.axes[kHQ], args.axes[kHKV]));
  LZ_RETURN_IF_ERROR(attention::ResolveScale("scale", args.axes[kDQK], args.scalars[kScale]));
  LZ_RETURN_IF_ERROR(attention::ResolveWindow(args.scalars[kWindow]));
  return attention::ResolveSoftcap(args.scalars[kSoftcap]);
}

inline constexpr Contract kContract = {
    .name = "ragged_attention",
    .summary = "Attention over packed sequences of different lengths; no token sees another sequence.",
    .definition =
        "Sequence s has the queries cu_seqlens_q[s] up to cu_seqlens_q[s+1] and the keys cu_seqlens_kv[s] up to "
        "cu_seqlens_kv[s+1]; on it the operation is `attention` with the same arguments. Queries that belong to no "
        "sequence (after the last offset) have output 0 and lse -inf; keys that belong to none are never read. Index "
        "data is valid if each offsets tensor starts at 0, never decreases and ends at most at the number of tokens, "
        "and no sequence is longer than the given max_seqlen; on invalid index data the reference fails with code 1 "
        "and writes nothing, other kernels may do the same or stay within the tensors.",
    .source = "arXiv:1706.03762, eq. 1, per sequence; packing as in arXiv:2307.08691's variable length form",
    .replaces = "a loop of torch.nn.functional.scaled_dot_product_attention over the sequences",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
    .derived = kDerived,
    .numerics_classes = attention::kNumericsClasses,
    .canonicalize = &Canonicalize,
};

}  // namespace lz::ops::attention_ragged
