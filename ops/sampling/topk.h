// sampling.topk: samples among the k largest logits; one seeded draw per row.
#pragma once

#include <array>

#include "core/contract.h"
#include "ops/common/sampling_contract.h"

namespace lz::ops::sampling_topk {

enum Tensor { kLogits, kRowK, kRowTemperature, kUniform, kToken };
enum Scalar { kK, kTemperature, kSeed, kOffset };

inline constexpr auto kVariants = std::to_array<Variant>({{"sampling.topk"}});
inline constexpr auto kParams = std::to_array<Param>({
    sampling::kLogits,
    OptionalInt("k", "keep the k largest logits, ties to the lower index; at least 1"),
    sampling::kTemperatureParam,
    sampling::kSeedParam,
    sampling::kOffsetParam,
    sampling::kRowKParam,
    sampling::kRowTemperatureParam,
    sampling::kUniformParam,
});
inline constexpr auto kOutputs = std::to_array<Output>({sampling::kToken});

inline Status Canonicalize(BoundArgs& args) {
  LZ_RETURN_IF_ERROR(sampling::CheckTopK(args.scalars[kK], args.tensors[kRowK]));
  LZ_RETURN_IF_ERROR(sampling::CheckTemperature(args.scalars[kTemperature], args.tensors[kRowTemperature]));
  return sampling::CheckDraw(args.scalars[kSeed], args.scalars[kOffset], args.tensors[kUniform]);
}

inline constexpr Contract kContract = {
    .name = "sample_topk",
    .summary = "Samples among the k largest logits.",
    .definition =
        LZ_SAMPLING_DRAW "kept: the min(k, vocab) largest logits, equal logits in index order (k = 1: the argmax)",
    .source = "Fan, Lewis and Dauphin 2018, arXiv:1805.04833, section 5.4",
    .replaces = "torch.multinomial(softmax(topk(logits / temperature, k))), gathered through the indices",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
    .tolerance = sampling::kTokenTolerance,
    .canonicalize = &Canonicalize,
    .differentiable = false,
};

}  // namespace lz::ops::sampling_topk
