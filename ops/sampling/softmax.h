// sampling.softmax: probabilities of the next token from its logits.
#pragma once

#include <array>

#include "core/contract.h"
#include "ops/common/sampling_contract.h"

namespace lz::ops::sampling_softmax {

enum Tensor { kLogits, kRowTemperature, kProbs };
enum Scalar { kTemperature };

inline constexpr auto kVariants = std::to_array<Variant>({{"sampling.softmax"}});
inline constexpr auto kParams = std::to_array<Param>({
    sampling::kLogits,
    Float("temperature", 1.0, "logits are divided by it first; finite and above 0"),
    sampling::kRowTemperatureParam,
});
inline constexpr auto kOutputs = std::to_array<Output>({
    {.name = "probs", .shape = "..., vocab", .dtype = "float32", .doc = "probabilities; each row sums to 1"},
});

inline Status Canonicalize(BoundArgs& args) {
  return sampling::CheckTemperature(args.scalars[kTemperature], args.tensors[kRowTemperature]);
}

inline constexpr Contract kContract = {
    .name = "softmax",
    .summary = "Softmax over the last axis with a temperature, in float32.",
    .definition =
        "probs = exp((logits - max) / temperature) / sum(exp((logits - max) / temperature)), max and sum over "
        "the last axis, rounded once; a row with a NaN, an inf or without a finite logit is NaN",
    .source = "Bridle 1990, Neurocomputing, pp. 227-236 (softmax)",
    .replaces = "torch.softmax(logits.float() / temperature, dim=-1)",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
    .tolerance = {.f32 = 1e-5, .f16 = 1e-5, .bf16 = 1e-5, .f64 = 1e-6},
    .canonicalize = &Canonicalize,
};

}  // namespace lz::ops::sampling_softmax
