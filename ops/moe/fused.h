// moe.fused: the selected experts' feed-forward blocks of each token, weighted and summed.
#pragma once

#include <array>

#include "ops/common/mlp.h"

namespace lz::ops::moe_fused {

enum Tensor {
  kInput,
  kExpertIds,
  kExpertWeights,
  kGateWeight,
  kDownWeight,
  kUpWeight,
  kGateBias,
  kUpBias,
  kDownBias,
  kOutput
};
enum Scalar { kActivation, kLimit, kAlpha, kUpOffset, kInterleaved, kWeighted };
enum Weighted { kOfOutput, kOfInput };

inline Status Canonicalize(BoundArgs& args) {
  return mlp::Check(&args.tensors[kGateWeight], &args.scalars[kActivation]);
}

inline constexpr auto kVariants = std::to_array<Variant>({{"moe.fused"}});
inline constexpr auto kParams = std::to_array<Param>({
    TensorParam("input", "..., d", kFloats, "a row for each token"),
    TensorParam("expert_ids", "..., k", kIndices, "experts of each token; an id outside [0, experts) is skipped"),
    TensorParam("expert_weights", "..., k", kFloats, "their weights"),
    SameDType(TensorParam("gate_weight", "experts, g, d", kFloats, "gate and up packed (g = 2 n), or the gate (g = n)"),
              "input"),
    SameDType(TensorParam("down_weight", "experts, m, n", kFloats, "projection of the hidden row"), "input"),
    KeywordOnly(SameDType(
        OptionalTensor("up_weight", "experts, n, d", kFloats, "up, if gate_weight does not include it"), "input")),
    KeywordOnly(SameDType(OptionalTensor("gate_bias", "experts, g", kFloats, "packed like gate_weight"), "input")),
    KeywordOnly(SameDType(OptionalTensor("up_bias", "experts, n", kFloats, "with up_weight"), "input")),
    KeywordOnly(SameDType(OptionalTensor("down_bias", "experts, m", kFloats, "weighted like the rest"), "input")),
    activation::kActivationParam,
    activation::kLimitParam,
    activation::kAlphaParam,
    activation::kUpOffsetParam,
    activation::kInterleavedParam,
    KeywordOnly(Choice("weighted", "output|input", kOfOutput, "the tensor that expert_weights multiply")),
});
inline constexpr auto kOutputs = std::to_array<Output>({
    {.name = "output", .shape = "..., m", .dtype = "input", .doc = "one row per token"},
});
inline constexpr auto kDerived = std::to_array<DerivedFact>({
    {"rows", "..."},  // the product of the leading axes
});

inline constexpr Contract kContract = {
    .name = "fused_moe",
    .summary = "Mixture of experts: the weighted sum of the chosen experts' feed-forward blocks.",
    .definition =
        "For a token's row x, e = expert_ids[j], w = expert_weights[j]: output = sum over j of w (down_weight[e] h_e + "
        "down_bias[e]) with g = Wg[e] x + bg[e], u = Wu[e] x + bu[e] (weighted = input: x is multiplied by w instead), "
        "in the order of j, rounded once, " LZ_GATED_DEFINITION LZ_MLP_FORMS LZ_ACTIVATION_DEFINITIONS
        "A kernel may round g, u and h to the dtype of input, but not to f16. A token without an expert results in 0",
    .source =
        "Shazeer et al. 2017, arXiv:1701.06538, eq. 1; arXiv:2002.05202, eq. 6; the clamped form: "
        "arXiv:2508.10925, section 2.2",
    .replaces = "a loop over the experts of index_select, linear, silu, linear and index_add",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
    .derived = kDerived,
    .tolerance = {.compare = Compare::kRowMax},
    .canonicalize = &Canonicalize,
};

}  // namespace lz::ops::moe_fused
