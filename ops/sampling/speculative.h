// sampling.speculative: chain speculative sampling; the tokens are distributed exactly as the target model's own.
#pragma once

#include <array>

#include "core/contract.h"
#include "ops/common/sampling_contract.h"

namespace lz::ops::sampling_speculative {

enum Tensor { kDraftProbs, kDraftTokenIds, kTargetProbs, kUniform, kOutputTokenIds, kNumAccepted };
enum Scalar { kSeed, kOffset };

inline constexpr auto kVariants = std::to_array<Variant>({{"sampling.speculative"}});
inline constexpr auto kParams = std::to_array<Param>({
    TensorParam("draft_probs", "b, n, vocab", kFloats, "the draft's distribution at each position; rows sum to 1"),
    TensorParam("draft_token_ids", "b, n", kIndices, "tokens sampled from draft_probs"),
    SameDType(TensorParam("target_probs", "b, n + 1, vocab", kFloats, "the target's distributions; rows sum to 1"),
              "draft_probs"),
    sampling::kSeedParam,
    sampling::kOffsetParam,
    KeywordOnly(OptionalTensor("uniform", "b, n + 1, 2", kFloat32And64,
                               "for each position two numbers in [0, 1), to accept its draft and to draw its token, "
                               "instead of a seed")),
});
inline constexpr auto kOutputs = std::to_array<Output>({
    {.name = "output_token_ids",
     .shape = "b, n + 1",
     .dtype = "int64",
     .doc = "the accepted drafts, then one sampled token, then -1"},
    {.name = "num_accepted", .shape = "b", .dtype = "int64", .doc = "number of accepted drafts"},
});

inline Status Canonicalize(BoundArgs& args) {
  return sampling::CheckDraw(args.scalars[kSeed], args.scalars[kOffset], args.tensors[kUniform]);
}

inline constexpr Contract kContract = {
    .name = "speculative_sample",
    .summary = "Chain speculative sampling: verifies drafted tokens against the target's distributions.",
    .definition =
        "With q = draft_probs[r, i], p = target_probs[r, i], t = draft_token_ids[r, i]: draft i is accepted while "
        "u * q[t] < p[t], u = PhiloxUniform(seed, offset, r, 1 + 2 i) (ops/common/philox.h) or uniform[r, i, 0]. The "
        "token after the accepted ones is drawn at that position i with u = PhiloxUniform(seed, offset, r, 2 + 2 i) or "
        "uniform[r, i, 1] as the first index, in vocabulary order, at which the running sum of w exceeds u times its "
        "total; w = max(p - q, 0) after a "
        "rejection (p itself if that has no mass), w = target_probs[r, n] when all n were accepted. A position that a "
        "NaN, a row without mass or a draft id outside [0, vocab) leaves undecided is -1 and ends the row, in "
        "strict mode an error",
    .source = "Leviathan, Kalman and Matias 2023, arXiv:2211.17192, algorithm 1; Chen et al. 2023, arXiv:2302.01318",
    .replaces = "a loop over the positions with torch.rand, torch.where and torch.multinomial",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
    .tolerance = sampling::kTokenTolerance,
    .canonicalize = &Canonicalize,
    .differentiable = false,
};

}  // namespace lz::ops::sampling_speculative
