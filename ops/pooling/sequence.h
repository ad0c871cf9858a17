// pooling.sequence: one vector per sequence, from the vectors of its valid tokens (encoders, embedding models).
#pragma once

#include <array>

#include "ops/common/checks.h"

namespace lz::ops::pooling_sequence {

enum Tensor { kInput, kMask, kLengths, kOutput };
enum Scalar { kMode };
enum Mode { kMean, kFirst, kLast, kMax };

inline Status Canonicalize(BoundArgs& args) {
  if (args.tensors[kMask].ndim < 0 || args.tensors[kLengths].ndim < 0) return {};
  return Invalid("lengths", "mask or lengths, not both", "both", "leave one of them out");
}

inline constexpr auto kVariants = std::to_array<Variant>({{"pooling.sequence"}});
inline constexpr auto kParams = std::to_array<Param>({
    TensorParam("input", "b, s, d", kFloats, "the vectors of s tokens, padded"),
    OptionalTensor("mask", "b, s", kIndices | Mask(DType::kBool), "not 0 for valid tokens; None: all are valid"),
    Choice("mode", "mean|first|last|max", kMean, "mean and max over the valid tokens; the first (CLS) or last of them"),
    KeywordOnly(OptionalTensor("lengths", "b", kIndices, "number of valid tokens, which come first; in [0, s]")),
});
inline constexpr auto kOutputs = std::to_array<Output>({
    {.name = "output", .shape = "b, d", .dtype = "input", .doc = "one vector per sequence"},
});

inline constexpr Contract kContract = {
    .name = "sequence_pool",
    .summary =
        "Pools the vectors of each sequence's valid tokens into one: their mean, maximum, the first or the last.",
    .definition =
        "output[b] = the mean, the element-wise maximum, the first or the last of input[b, i] over the valid i, "
        "rounded once; a sequence without a valid token has 0; a NaN of a valid token reaches mean and max, "
        "other tokens never affect a result. A length outside [0, s] is an error",
    .source = "Reimers and Gurevych 2019, arXiv:1908.10084, section 3 (MEAN, CLS, MAX)",
    .replaces = "(input * mask[..., None]).sum(1) / mask.sum(1, keepdim=True) and its like",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
    .canonicalize = &Canonicalize,
};

}  // namespace lz::ops::pooling_sequence
