// sampling.topk_topp: samples from the top-p set of the k largest logits; one seeded draw per row.
#pragma once

#include <array>

#include "core/contract.h"
#include "ops/common/sampling_contract.h"

namespace lz::ops::sampling_topk_topp {

enum Tensor { kLogits, kRowK, kRowP, kRowTemperature, kUniform, kToken };
enum Scalar { kK, kP, kTemperature, kSeed, kOffset };

inline constexpr auto kVariants = std::to_array<Variant>({{"sampling.topk_topp"}});
inline constexpr auto kParams = std::to_array<Param>({
    sampling::kLogits,
    OptionalInt("k", "keep the k largest logits, ties to the lower index; at least 1"),
    OptionalFloat("p", "keep the shortest most-probable prefix whose mass is at least p; in [0, 1]"),
    sampling::kTemperatureParam,
    sampling::kSeedParam,
    sampling::kOffsetParam,
    sampling::kRowKParam,
    sampling::kRowPParam,
    sampling::kRowTemperatureParam,
    sampling::kUniformParam,
});
inline constexpr auto kOutputs = std::to_array<Output>({sampling::kToken});

inline Status Canonicalize(BoundArgs& args) {
  LZ_RETURN_IF_ERROR(sampling::CheckTopK(args.scalars[kK], args.tensors[kRowK]));
  LZ_RETURN_IF_ERROR(sampling::CheckTopP(args.scalars[kP], args.tensors[kRowP]));
  LZ_RETURN_IF_ERROR(sampling::CheckTemperature(args.scalars[kTemperature], args.tensors[kRowTemperature]));
  return sampling::CheckDraw(args.scalars[kSeed], args.scalars[kOffset], args.tensors[kUniform]);
}

inline constexpr Contract kContract = {
    .name = "sample_topk_topp",
    .summary = "Samples from the top-p set of the k largest logits.",
    .definition = LZ_SAMPLING_DRAW
    "kept: first the min(k, vocab) largest logits, equal logits in index order; of these, in the same order, the "
    "shortest prefix of at least one token whose sum of w is at least p times the sum over the k",
    .source = "Fan, Lewis and Dauphin 2018, arXiv:1805.04833; Holtzman et al. 2019, arXiv:1904.09751",
    .replaces = "torch.topk, cumsum, masking and torch.multinomial over softmax(logits / temperature)",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
    .tolerance = sampling::kTokenTolerance,
    .canonicalize = &Canonicalize,
    .differentiable = false,
};

}  // namespace lz::ops::sampling_topk_topp
