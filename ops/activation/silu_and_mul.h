// activation.silu_and_mul: SwiGLU of a packed projection.
#pragma once

#include <array>
#include <string>

#include "core/contract.h"

namespace lz::ops::activation_silu_and_mul {

enum Tensor { kInput, kOutput };

inline Status Canonicalize(BoundArgs& args) {
  const lz_tensor& x = args.tensors[kInput];
  const int64_t width = x.shape[x.ndim - 1];
  if (width % 2 == 0) return {};
  return {StatusCode::kInvalidRequest,
          {"input", "an even last axis: gate, then up", std::to_string(width), "pack halves of equal width"}};
}

inline constexpr auto kVariants = std::to_array<Variant>({{"activation.silu_and_mul"}});
inline constexpr auto kParams = std::to_array<Param>({
    TensorParam("input", "..., width", kFloats, "gate in the first half of the last axis, up in the second"),
});
inline constexpr auto kOutputs = std::to_array<Output>({
    {.name = "output", .shape = "..., width / 2", .dtype = "input", .doc = "half as wide as input"},
});

inline constexpr Contract kContract = {
    .name = "silu_and_mul",
    .summary = "SiLU of the first half of the last axis times the second half.",
    .definition = "n = width / 2; g = input[..., :n], u = input[..., n:]; output = g / (1 + exp(-g)) * u, rounded once",
    .source = "Shazeer 2020, arXiv:2002.05202, eq. 5 with beta = 1",
    .replaces = "torch.nn.functional.silu(input[..., :n]) * input[..., n:]",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
    .canonicalize = &Canonicalize,
};

}  // namespace lz::ops::activation_silu_and_mul
