// attention.{standard,gqa}.partials: attention over runs of the keys without the merge: the output of a split-KV kernel
// and the input of attention.merge.partials.
#pragma once

#include "ops/common/attention.h"

namespace lz::ops::attention_partials {

enum Tensor { kQuery, kKey, kValue, kAttnMask, kAlibiSlopes, kPartials, kLse, kRowSum };
enum Scalar { kNumSplits, kRaw, kCausal, kScale, kWindow, kSoftcap };
enum Axis { kB, kSQ, kHQ, kDQK, kSKV, kHKV, kDV };

inline constexpr int64_t kMaxSplits = 4096;

inline constexpr auto kStandard = std::to_array<Condition>({{"group", Rel::kEq, 1}});
inline constexpr auto kVariants = std::to_array<Variant>({
    {"attention.standard.partials", kStandard},
    {"attention.gqa.partials"},
});

inline constexpr auto kParams = std::to_array<Param>({
    WithLayout(TensorParam("query", "b, s_q, h_q, d_qk", kFloats, "queries")),
    WithLayout(SameDType(TensorParam("key", "b, s_kv, h_kv, d_qk", kFloats, "keys"), "query")),
    WithLayout(SameDType(TensorParam("value", "b, s_kv, h_kv, d_v", kFloats, "values"), "query")),
    RequiredInt("num_splits", "number of runs that the keys are divided into"),
    KeywordOnly(Bool("raw", false, "sums of exp(logit - row max) value instead of normalized outputs")),
    KeywordOnly(OptionalBool("causal", "mask keys after the row's position; None: True without a mask, else False")),
    KeywordOnly(attention::Scale("scale")),
    attention::AttnMask(),
    attention::Window(),
    attention::SoftcapParam(),
    attention::AlibiSlopes(),
});
inline constexpr auto kOutputs = std::to_array<Output>({
    {.name = "partials",
     .shape = "num_splits, b * s_q, h_q, d_v",
     .dtype = "float32",
     .doc = "output of each run of keys, normalized by its own sum, or raw"},
    {.name = "lse",
     .shape = "num_splits, b * s_q, h_q",
     .dtype = "float32",
     .doc = "lse of each run, natural log; raw: its largest logit; -inf: no key of the run is visible"},
    {.name = "row_sum",
     .shape = "num_splits, b * s_q, h_q",
     .dtype = "float32",
     .doc = "sum of exp(logit - row max) over the run; 0 without a visible key",
     .only_if = "raw"},
});
inline constexpr auto kDerived = std::to_array<DerivedFact>({{"group", "h_q / h_kv"}});

inline Status Canonicalize(BoundArgs& args) {
  const int64_t splits = args.scalars[kNumSplits].value.i;
  if (splits < 1 || splits > kMaxSplits) {
    return attention::Invalid("num_splits", "1 to " + std::to_string(kMaxSplits), std::to_string(splits),
                              "more runs than keys have no benefit; pass 1 for one part");
  }
  LZ_RETURN_IF_ERROR(attention::ResolveCausal(args.tensors[kAttnMask], args.scalars[kCausal]));
  LZ_RETURN_IF_ERROR(attention::CheckHeads("key", args.axes[kHQ], args.axes[kHKV]));
  LZ_RETURN_IF_ERROR(attention::ResolveScale("scale", args.axes[kDQK], args.scalars[kScale]));
  LZ_RETURN_IF_ERROR(attention::ResolveWindow(args.scalars[kWindow]));
  return attention::ResolveSoftcap(args.scalars[kSoftcap]);
}

inline constexpr Contract kContract = {
    .name = "attention_partials",
    .summary = "Attention over runs of the keys, without the merge, for merge_partials.",
    .definition =
        "num_splits is 1 to 4096. c = ceil(s_kv / num_splits); run t holds the keys t c up to min((t + 1) c, s_kv). "
        "Row i of batch b is row b s_q + i of the outputs. With z and the visible keys of `attention`, m the largest "
        "visible z of the run and l = sum exp(z - m): partials = sum exp(z - m) value / l and lse = m + ln l, or with "
        "raw partials = sum exp(z - m) value, lse = m and row_sum = l. A run without a visible key has 0, -inf and 0. "
        "Raw sums with an lse alone could not be normalized, hence the row sum. There are no sinks: a sink belongs to "
        "the last merge. Paged caches need no operation of their own: `paged_decode_attention` of a part of the pages "
        "with return_lse is a normalized part",
    .source = "arXiv:2307.08691, section 2.3; lse in natural log",
    .replaces = "torch.nn.functional.scaled_dot_product_attention on slices of the keys, with its logsumexp",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
    .derived = kDerived,
    .layouts = "BSHD: b s h d | BHSD: b h s d",
    .canonicalize = &Canonicalize,
};

}  // namespace lz::ops::attention_partials
