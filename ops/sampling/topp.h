// sampling.topp: samples from the smallest set of most probable tokens whose probability is at least p (nucleus); one
// seeded draw per row.
#pragma once

#include <array>

#include "core/contract.h"
#include "ops/common/sampling_contract.h"

namespace lz::ops::sampling_topp {

enum Tensor { kLogits, kRowP, kRowTemperature, kUniform, kToken };
enum Scalar { kP, kTemperature, kSeed, kOffset };

inline constexpr auto kVariants = std::to_array<Variant>({{"sampling.topp"}});
inline constexpr auto kParams = std::to_array<Param>({
    sampling::kLogits,
    OptionalFloat("p", "keep the shortest most-probable prefix whose mass is at least p; in [0, 1]"),
    sampling::kTemperatureParam,
    sampling::kSeedParam,
    sampling::kOffsetParam,
    sampling::kRowPParam,
    sampling::kRowTemperatureParam,
    sampling::kUniformParam,
});
inline constexpr auto kOutputs = std::to_array<Output>({sampling::kToken});

inline Status Canonicalize(BoundArgs& args) {
  LZ_RETURN_IF_ERROR(sampling::CheckTopP(args.scalars[kP], args.tensors[kRowP]));
  LZ_RETURN_IF_ERROR(sampling::CheckTemperature(args.scalars[kTemperature], args.tensors[kRowTemperature]));
  return sampling::CheckDraw(args.scalars[kSeed], args.scalars[kOffset], args.tensors[kUniform]);
}

inline constexpr Contract kContract = {
    .name = "sample_topp",
    .summary = "Samples from the smallest set of most probable tokens whose probability is at least p (nucleus).",
    .definition = LZ_SAMPLING_DRAW
    "kept: in the order of descending logits, equal logits in index order, the shortest prefix of at least one token "
    "whose sum of w is at least p times the sum of all w (p = 0: the argmax; p = 1: every token)",
    .source = "Holtzman et al. 2019, arXiv:1904.09751, section 3.1",
    .replaces = "torch.sort, cumsum, masking and torch.multinomial over softmax(logits / temperature)",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
    .tolerance = sampling::kTokenTolerance,
    .canonicalize = &Canonicalize,
    .differentiable = false,
};

}  // namespace lz::ops::sampling_topp
