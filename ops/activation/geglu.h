// activation.geglu: the gated product of GeGLU.
#pragma once

#include <array>

#include "core/contract.h"

namespace lz::ops::activation_geglu {

enum Tensor { kGate, kUp, kOutput };
enum Scalar { kApproximate };
enum Approximate { kNone, kTanh };

inline constexpr auto kVariants = std::to_array<Variant>({{"activation.geglu"}});
inline constexpr auto kParams = std::to_array<Param>({
    TensorParam("gate", "..., n", kFloats, "input of the activation"),
    SameDType(TensorParam("up", "..., n", kFloats, "multiplied by the activated gate"), "gate"),
    KeywordOnly(Choice("approximate", "none|tanh", kNone, "none: the error function; tanh: its approximation")),
});
inline constexpr auto kOutputs = std::to_array<Output>({
    {.name = "output", .shape = "..., n", .dtype = "gate", .doc = "same shape as gate"},
});

inline constexpr Contract kContract = {
    .name = "geglu",
    .summary = "GELU of the gate times the other projection.",
    .definition =
        "output = gelu(gate) * up, rounded once; none: gelu(x) = x / 2 (1 + erf(x / sqrt(2))); tanh: gelu(x) "
        "= x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))); output may alias gate or up",
    .source = "Shazeer 2020, arXiv:2002.05202, eq. 5; Hendrycks and Gimpel 2016, arXiv:1606.08415, section 2",
    .replaces = "torch.nn.functional.gelu(gate, approximate=approximate) * up",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
};

}  // namespace lz::ops::activation_geglu
