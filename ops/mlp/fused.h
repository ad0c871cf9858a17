// mlp.fused: a feed-forward block: up projection, activation, gate, down projection.
#pragma once

#include <array>

#include "ops/common/mlp.h"

namespace lz::ops::mlp_fused {

enum Tensor { kInput, kGateWeight, kDownWeight, kUpWeight, kGateBias, kUpBias, kDownBias, kOutput };
enum Scalar { kActivation, kLimit, kAlpha, kUpOffset, kInterleaved };

inline Status Canonicalize(BoundArgs& args) {
  return mlp::Check(&args.tensors[kGateWeight], &args.scalars[kActivation]);
}

inline constexpr auto kVariants = std::to_array<Variant>({{"mlp.fused"}});
inline constexpr auto kParams = std::to_array<Param>({
    TensorParam("input", "..., d", kFloats, "rows to transform"),
    SameDType(TensorParam("gate_weight", "g, d", kFloats, "gate and up packed (g = 2 n), or the gate alone (g = n)"),
              "input"),
    SameDType(TensorParam("down_weight", "m, n", kFloats, "projection of the hidden row"), "input"),
    KeywordOnly(
        SameDType(OptionalTensor("up_weight", "n, d", kFloats, "up, if gate_weight does not include it"), "input")),
    KeywordOnly(SameDType(OptionalTensor("gate_bias", "g", kFloats, "packed like gate_weight"), "input")),
    KeywordOnly(SameDType(OptionalTensor("up_bias", "n", kFloats, "with up_weight"), "input")),
    KeywordOnly(SameDType(OptionalTensor("down_bias", "m", kFloats, "added at the end"), "input")),
    activation::kActivationParam,
    activation::kLimitParam,
    activation::kAlphaParam,
    activation::kUpOffsetParam,
    activation::kInterleavedParam,
});
inline constexpr auto kOutputs = std::to_array<Output>({
    {.name = "output", .shape = "..., m", .dtype = "input", .doc = "one row for each row of input"},
});
inline constexpr auto kDerived = std::to_array<DerivedFact>({
    {"rows", "..."},  // the product of the leading axes
});

inline constexpr Contract kContract = {
    .name = "fused_mlp",
    .summary = "A feed-forward block: SwiGLU, GeGLU, the clamped SwiGLU and similar blocks, or an MLP without a gate.",
    .definition =
        "With x a row of input: g = Wg x + bg, u = Wu x + bu; output = down_weight h + down_bias, "
        "rounded once, " LZ_GATED_DEFINITION LZ_MLP_FORMS LZ_ACTIVATION_DEFINITIONS
        "A kernel may round g, u and h to the dtype of input, but not to f16",
    .source = "Shazeer 2020, arXiv:2002.05202, eq. 6; the clamped form: OpenAI 2025, arXiv:2508.10925, section 2.2",
    .replaces = "linear(silu(linear(input, gate)) * linear(input, up), down)",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
    .derived = kDerived,
    .tolerance = {.compare = Compare::kRowMax},
    .canonicalize = &Canonicalize,
};

}  // namespace lz::ops::mlp_fused
