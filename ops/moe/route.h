// moe.route: the experts of each token and their weights, from the router's logits.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>

#include "core/number_text.h"
#include "ops/common/checks.h"

namespace lz::ops::moe_route {

enum Tensor { kLogits, kBias, kWeights, kExpertIds };
enum Scalar { kK, kScoring, kRenormalize, kScale, kNumGroups, kTopGroups, kGroupScore, kMinSum, kJitter };
enum Scoring { kSoftmax, kSigmoid, kSqrtSoftplus, kSparsemixer };
enum GroupScore { kMax, kTop2Sum };

inline Status NotNegative(const lz_scalar& s, std::string_view name) {
  if (s.value.f >= 0 && std::isfinite(s.value.f)) return {};
  return Invalid(name, "a finite number of at least 0", NumberText(s.value.f), "leave it out for 0");
}

// Refuses scalars that only have an effect together with others.
inline Status NoneWithoutEffect(const BoundArgs& args) {
  const lz_scalar* s = args.scalars;
  if (s[kMinSum].value.f != 0 && !s[kRenormalize].value.i) {
    return Invalid("min_sum", "renormalize with it", "none", "it bounds the sum that renormalize divides by");
  }
  if (s[kJitter].value.f != 0 && s[kScoring].value.i != kSparsemixer) {
    return Invalid("jitter", "scoring=sparsemixer with it", "another scoring", "leave it out");
  }
  if (s[kGroupScore].value.i != kMax && s[kNumGroups].value.i == 1) {
    return Invalid("group_score", "num_groups with it", "no groups", "leave it out");
  }
  return {};
}

inline Status Canonicalize(BoundArgs& args) {
  const lz_tensor& logits = args.tensors[kLogits];
  const int64_t experts = logits.shape[logits.ndim - 1], k = args.scalars[kK].value.i;
  const int64_t groups = args.scalars[kNumGroups].value.i, top = args.scalars[kTopGroups].value.i;
  LZ_RETURN_IF_ERROR(AtLeast(args.scalars[kK], "k", 0));
  LZ_RETURN_IF_ERROR(AtLeast(args.scalars[kNumGroups], "num_groups", 1));
  LZ_RETURN_IF_ERROR(AtLeast(args.scalars[kTopGroups], "top_groups", 1));
  LZ_RETURN_IF_ERROR(Finite(args.scalars[kScale], "scale"));
  LZ_RETURN_IF_ERROR(NotNegative(args.scalars[kMinSum], "min_sum"));
  LZ_RETURN_IF_ERROR(NotNegative(args.scalars[kJitter], "jitter"));
  const bool plain = args.tensors[kBias].ndim < 0 && groups == 1 && !args.scalars[kRenormalize].value.i;
  if (args.scalars[kScoring].value.i == kSparsemixer && !plain) {
    return Invalid("scoring", "another one with bias, groups or renormalize", "sparsemixer",
                   "it chooses one expert after the other, and each has a softmax of its own");
  }
  LZ_RETURN_IF_ERROR(NoneWithoutEffect(args));
  if (experts % groups != 0 || groups > std::max<int64_t>(experts, 1)) {
    return Invalid("num_groups", "a divisor of the " + std::to_string(experts) + " experts", std::to_string(groups),
                   "groups are of equal size");
  }
  if (top > groups) {
    return Invalid("top_groups", "at most num_groups = " + std::to_string(groups), std::to_string(top),
                   "leave both out for no groups");
  }
  if (k <= experts / groups * top) return {};
  return Invalid("k", "at most the " + std::to_string(experts / groups * top) + " experts to choose from",
                 std::to_string(k), "choose fewer experts");
}

inline constexpr auto kVariants = std::to_array<Variant>({{"moe.route"}});
inline constexpr auto kParams = std::to_array<Param>({
    TensorParam("logits", "..., experts", kFloats, "the router's output"),
    RequiredInt("k", "experts per token"),
    KeywordOnly(OptionalTensor("bias", "experts", kFloats, "added to the scores for the choice, not for the weights")),
    KeywordOnly(
        Choice("scoring", "softmax|sigmoid|sqrt_softplus|sparsemixer", kSoftmax, "function from logits to scores")),
    KeywordOnly(Bool("renormalize", false, "divide the weights by their sum")),
    KeywordOnly(Float("scale", 1.0, "factor of the weights")),
    KeywordOnly(Int("num_groups", 1, "number of groups of equal size that experts are divided into")),
    KeywordOnly(Int("top_groups", 1, "groups that experts are chosen from")),
    KeywordOnly(
        Choice("group_score", "max|top2_sum", kMax, "score by which groups are chosen; without groups only max")),
    KeywordOnly(Float("min_sum", 0.0, "with renormalize: lower bound of the divisor of the weights")),
    KeywordOnly(Float("jitter", 0.0, "sparsemixer: relative distance from the best within which an expert counts")),
});
inline constexpr auto kOutputs = std::to_array<Output>({
    {.name = "weights", .shape = "..., k", .dtype = "float32", .doc = "weights of the chosen experts"},
    {.name = "expert_ids", .shape = "..., k", .dtype = "int32", .doc = "the chosen experts, best first"},
});

inline constexpr Contract kContract = {
    .name = "moe_route",
    .summary = "Routes tokens to experts: scores, group-limited top-k choice with a bias, weights.",
    .definition =
        "s = softmax(logits), 1 / (1 + exp(-logits)) or sqrt(log(1 + exp(logits))); c = s + bias. With more than one "
        "group the top_groups groups of the largest max(c) or sum of the two largest c stay, the others are excluded. "
        "expert_ids: the k largest c that stay, in descending order; NaN counts as the largest, equal values go to "
        "the lower index (of groups too). weights = scale * s[expert_ids], divided by their sum, or min_sum if that "
        "is larger, before scaling if renormalize (0 / 0 is 0), rounded once. sparsemixer: c = logits; the weight of "
        "each expert is scale / sum exp(x - m), m its logit, over the logits x of it and those not chosen before it "
        "with (m - x) / max(|x|, m) at most 2 jitter",
    .source =
        "Shazeer et al. 2017, arXiv:1701.06538; DeepSeek-AI 2024, arXiv:2412.19437, eq. 12 to 16 (bias, groups); Liu "
        "et al. 2024, arXiv:2409.12136 (sparsemixer)",
    .replaces = "torch.topk(torch.softmax(logits, -1), k) and its variants",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
    .canonicalize = &Canonicalize,
};

}  // namespace lz::ops::moe_route
