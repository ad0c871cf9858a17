// attention.gated_delta_rule: linear attention whose state decays and is corrected by each position, in place.
#pragma once

#include "core/number_text.h"
#include "ops/common/attention.h"
#include "ops/common/checks.h"

namespace lz::ops::attention_gated_delta_rule {

enum Tensor { kQuery, kKey, kValue, kG, kBeta, kState, kALog, kDtBias, kOutput };
enum Scalar { kScale, kL2Eps, kBetaScale };
enum Axis { kB, kS, kHK, kDK, kHV, kDV };

inline constexpr auto kVariants = std::to_array<Variant>({{"attention.gated_delta_rule"}});
inline constexpr auto kParams = std::to_array<Param>({
    TensorParam("query", "b, s, h_k, d_k", kFloats, "queries"),
    SameDType(TensorParam("key", "b, s, h_k, d_k", kFloats, "keys"), "query"),
    SameDType(TensorParam("value", "b, s, h_v, d_v", kFloats, "values; h_v is a multiple of h_k"), "query"),
    TensorParam("g", "b, s, h_v", kFloats, "logarithm of the decay, at most 0; with a_log a logit"),
    TensorParam("beta", "b, s, h_v", kFloats, "strength of the correction; with a_log a logit"),
    Mutated(TensorParam("state", "b, h_v, d_k, d_v", Mask(DType::kF32),
                        "the state before these positions; overwritten by the one after them")),
    KeywordOnly(OptionalTensor("a_log", "h_v", kFloats, "per head; None: g and beta are used unchanged")),
    KeywordOnly(OptionalTensor("dt_bias", "h_v", kFloats, "added to g if a_log is given")),
    KeywordOnly(OptionalFloat("scale", "factor of the queries; None: 1/sqrt(d_k)")),
    KeywordOnly(OptionalFloat("l2_eps", "queries and keys are divided by sqrt(their sum of squares + l2_eps)")),
    KeywordOnly(Float("beta_scale", 1.0, "factor of beta")),
});
inline constexpr auto kOutputs = std::to_array<Output>({
    {.name = "output", .shape = "b, s, h_v, d_v", .dtype = "query", .doc = "products of the states with the queries"},
});

inline Status Canonicalize(BoundArgs& args) {
  const int64_t h_k = args.axes[kHK], h_v = args.axes[kHV];
  if (h_k == 0 ? h_v != 0 : h_v % h_k != 0) {
    return Invalid("value", "a multiple of the " + std::to_string(h_k) + " heads of the keys", std::to_string(h_v),
                   "each head of keys serves equally many heads of values");
  }
  if (args.tensors[kDtBias].ndim >= 0 && args.tensors[kALog].ndim < 0) {
    return Invalid("dt_bias", "a_log with it", "none", "add it to the values that g is computed from");
  }
  LZ_RETURN_IF_ERROR(Finite(args.scalars[kBetaScale], "beta_scale"));
  const lz_scalar& l2_eps = args.scalars[kL2Eps];
  if (l2_eps.given && !(l2_eps.value.f >= 0 && std::isfinite(l2_eps.value.f))) {
    return Invalid("l2_eps", "a finite number of at least 0", NumberText(l2_eps.value.f), "1e-6 is usual");
  }
  return attention::ResolveScale("scale", args.axes[kDK], args.scalars[kScale]);
}

inline constexpr Contract kContract = {
    .name = "gated_delta_rule",
    .summary = "Linear attention by the gated delta rule over a state that is kept from call to call.",
    .definition =
        "For each value head h, with q and k of head floor(h * h_k / h_v), divided by sqrt(their sum of squares + "
        "l2_eps) if that is given, and S = state[b, h]; for each position in turn: S = exp(g) S; S = S + beta k (v - "
        "S^T k)^T; output = scale S^T q. With a_log, g is replaced by -exp(a_log[h]) softplus(g + dt_bias[h]) and "
        "beta by sigmoid(beta); beta_scale is a factor of it either way. state holds the last S afterwards. "
        "Intermediate values that exceed float32 may stay infinite or NaN, within their head; in a recursion that "
        "grows, as with keys longer than 1, rounding errors are relative to the largest intermediate state",
    .source = "Yang, Kautz and Hatamizadeh 2024, arXiv:2412.06464, equation 10",
    .replaces = "fla.ops.gated_delta_rule.fused_recurrent_gated_delta_rule and chunk_gated_delta_rule",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
    .tolerance = {.compare = Compare::kRowMax, .f32 = 1e-4},  // each position corrects what the previous ones have left
    .canonicalize = &Canonicalize,
    .differentiable = false,
};

}  // namespace lz::ops::attention_gated_delta_rule
