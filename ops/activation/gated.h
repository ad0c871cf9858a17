// activation.gated: the gated product of a packed projection, with every activation and the clamped form.
#pragma once

#include <array>

#include "ops/common/activation.h"

namespace lz::ops::activation_gated {

enum Tensor { kInput, kOutput };
enum Scalar { kActivation, kLimit, kAlpha, kUpOffset, kInterleaved };

inline Status Canonicalize(BoundArgs& args) {
  const lz_tensor& x = args.tensors[kInput];
  const int64_t width = x.shape[x.ndim - 1];
  if (width % 2 != 0) {
    return Invalid("input", "an even last axis: gate and up", std::to_string(width), "pack parts of equal width");
  }
  return activation::CheckGate(&args.scalars[kActivation]);
}

inline constexpr auto kVariants = std::to_array<Variant>({{"activation.gated"}});
inline constexpr auto kParams = std::to_array<Param>({
    TensorParam("input", "..., width", kFloats, "gate in the first half of the last axis, up in the second"),
    activation::kActivationParam,
    activation::kLimitParam,
    activation::kAlphaParam,
    activation::kUpOffsetParam,
    activation::kInterleavedParam,
});
inline constexpr auto kOutputs = std::to_array<Output>({
    {.name = "output", .shape = "..., width / 2", .dtype = "input", .doc = "half as wide as input"},
});

inline constexpr Contract kContract = {
    .name = "gated_activation",
    .summary = "The activation of one half of the last axis times the other half, clamped if a limit is given.",
    .definition =
        "n = width / 2; g = input[..., :n], u = input[..., n:], or g = input[..., ::2], u = input[..., 1::2] "
        "if interleaved; output = h, rounded once, " LZ_GATED_DEFINITION LZ_ACTIVATION_DEFINITIONS,
    .source =
        "Shazeer 2020, arXiv:2002.05202, eq. 5 and 6; the clamped form: OpenAI 2025, arXiv:2508.10925, section 2.2",
    .replaces = "torch.nn.functional.silu(input[..., :n]) * input[..., n:] and its like",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
    .canonicalize = &Canonicalize,
};

}  // namespace lz::ops::activation_gated
