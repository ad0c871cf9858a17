// activation.swiglu: the gated product of SwiGLU.
#pragma once

#include <array>

#include "core/contract.h"

namespace lz::ops::activation_swiglu {

enum Tensor { kGate, kUp, kOutput };

inline constexpr auto kVariants = std::to_array<Variant>({{"activation.swiglu"}});
inline constexpr auto kParams = std::to_array<Param>({
    TensorParam("gate", "..., n", kFloats, "input of the activation"),
    SameDType(TensorParam("up", "..., n", kFloats, "multiplied by the activated gate"), "gate"),
});
inline constexpr auto kOutputs = std::to_array<Output>({
    {.name = "output", .shape = "..., n", .dtype = "gate", .doc = "same shape as gate"},
});

inline constexpr Contract kContract = {
    .name = "swiglu",
    .summary = "SiLU of the gate times the other projection.",
    .definition = "output = gate / (1 + exp(-gate)) * up, rounded once; output may alias gate or up",
    .source = "Shazeer 2020, arXiv:2002.05202, eq. 5 with beta = 1",
    .replaces = "torch.nn.functional.silu(gate) * up",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
};

}  // namespace lz::ops::activation_swiglu
