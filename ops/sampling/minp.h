// sampling.minp: samples among the tokens whose probability is at least min_p times the largest; one seeded draw
// per row.
#pragma once

#include <array>

#include "core/contract.h"
#include "ops/common/sampling_contract.h"

namespace lz::ops::sampling_minp {

enum Tensor { kLogits, kRowMinP, kRowTemperature, kUniform, kToken };
enum Scalar { kMinP, kTemperature, kSeed, kOffset };

inline constexpr auto kVariants = std::to_array<Variant>({{"sampling.minp"}});
inline constexpr auto kParams = std::to_array<Param>({
    sampling::kLogits,
    OptionalFloat("min_p", "keep probabilities of at least min_p times the largest; in [0, 1]"),
    sampling::kTemperatureParam,
    sampling::kSeedParam,
    sampling::kOffsetParam,
    sampling::kRowMinPParam,
    sampling::kRowTemperatureParam,
    sampling::kUniformParam,
});
inline constexpr auto kOutputs = std::to_array<Output>({sampling::kToken});

inline Status Canonicalize(BoundArgs& args) {
  LZ_RETURN_IF_ERROR(sampling::CheckMinP(args.scalars[kMinP], args.tensors[kRowMinP]));
  LZ_RETURN_IF_ERROR(sampling::CheckTemperature(args.scalars[kTemperature], args.tensors[kRowTemperature]));
  return sampling::CheckDraw(args.scalars[kSeed], args.scalars[kOffset], args.tensors[kUniform]);
}

inline constexpr Contract kContract = {
    .name = "sample_minp",
    .summary = "Samples among the tokens whose probability is at least min_p times the largest.",
    .definition = LZ_SAMPLING_DRAW
    "kept: every i with w_i >= min_p (the largest w is 1; min_p = 1: the ties of the largest logit)",
    .source = "Nguyen et al. 2024, arXiv:2407.01082, section 3",
    .replaces = "masking and torch.multinomial over softmax(logits / temperature)",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
    .tolerance = sampling::kTokenTolerance,
    .canonicalize = &Canonicalize,
    .differentiable = false,
};

}  // namespace lz::ops::sampling_minp
