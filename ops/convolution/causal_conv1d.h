// convolution.causal_conv1d: a window of each channel over the last positions, some of which were in an earlier call.
#pragma once

#include <array>

#include "ops/common/checks.h"

namespace lz::ops::convolution_causal_conv1d {

enum Tensor { kInput, kWeight, kState, kBias, kOutput };
enum Scalar { kActivation };
enum Activation { kNone, kSilu };
enum Axis { kB, kS, kC, kK, kN };

inline constexpr auto kVariants = std::to_array<Variant>({{"convolution.causal_conv1d"}});
inline constexpr auto kParams = std::to_array<Param>({
    TensorParam("input", "b, s, c", kFloats, "positions of c channels"),
    SameDType(TensorParam("weight", "c, k", kFloats, "per channel; the last one is for the row's own position"),
              "input"),
    Mutated(SameDType(TensorParam("state", "b, c, n", kFloats,
                                  "the n >= k - 1 previous positions; overwritten by the "
                                  "last ones"),
                      "input")),
    KeywordOnly(SameDType(OptionalTensor("bias", "c", kFloats, "added to each channel; None: 0"), "input")),
    KeywordOnly(Choice("activation", "none|silu", kNone, "of the result")),
});
inline constexpr auto kOutputs = std::to_array<Output>({
    {.name = "output", .shape = "b, s, c", .dtype = "input", .doc = "positions of c channels"},
});

inline Status Canonicalize(BoundArgs& args) {
  const int64_t k = args.axes[kK], n = args.axes[kN];
  if (k < 1) return Invalid("weight", "at least 1 along its last axis", std::to_string(k), "pass weights");
  if (n >= k - 1) return {};
  return Invalid("state", "at least " + std::to_string(k - 1) + " positions", std::to_string(n),
                 "keep the positions that the window reads");
}

inline constexpr Contract kContract = {
    .name = "causal_conv1d",
    .summary = "Causal convolution of each channel separately, over a state that is kept from call to call.",
    .definition =
        "x = state[b, c, :] followed by input[b, :, c]; output[b, t, c] = f(bias[c] + sum_j weight[c, j] * x[n + t - "
        "k + 1 + j]), rounded once, f(x) = x, or x sigmoid(x) for silu. state holds the last n of x afterwards. A "
        "sequence begins with a state of zeros",
    .source = "Gu and Dao 2023, arXiv:2312.00752, section 3.4 (the convolution before the state)",
    .replaces = "causal_conv1d_fn and causal_conv1d_update of the causal-conv1d package",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
    .tolerance = {.compare = Compare::kRowMax},
    .canonicalize = &Canonicalize,
    .differentiable = false,
};

}  // namespace lz::ops::convolution_causal_conv1d
