// mlp.linear.prepack: 4-bit weights in the order that SIMD kernels decode without shuffles.
#pragma once

#include <array>
#include <string>

#include "core/contract.h"

namespace lz::ops::mlp_linear_prepack {

enum Tensor { kWeight, kPacked };
inline constexpr int64_t kGroupBytes = 16;  // for 32 values

inline constexpr auto kVariants = std::to_array<Variant>({{"mlp.linear.prepack"}});
inline constexpr auto kParams = std::to_array<Param>({
    TensorParam("weight", "n, bytes", Mask(DType::kU8),
                "4-bit codes of any format, two in a byte, the even element in the low half"),
});
inline constexpr auto kOutputs = std::to_array<Output>({
    {.name = "packed", .shape = "n, bytes", .dtype = "uint8", .doc = "for the argument `packed` of linear_quantized"},
});

inline Status Canonicalize(BoundArgs& args) {
  const int64_t bytes = args.tensors[kWeight].shape[1];
  if (bytes % kGroupBytes == 0) return {};
  return Status(StatusCode::kInvalidRequest, {.field = "weight",
                                              .wanted = "rows of a multiple of 32 values (16 bytes)",
                                              .got = std::to_string(bytes) + " bytes",
                                              .fix = "pad the rows, or use the unpacked weight"});
}

inline constexpr Contract kContract = {
    .name = "linear_prepack",
    .summary = "Puts 4-bit weights into the order that fast kernels of linear_quantized read.",
    .definition =
        "Of each 32 values of a row, byte j of 16 holds value j in its low half and value j + 16 in its high half. "
        "Scales are unchanged",
    .source = "own; the order of codes within a block is that of GGUF's Q4_0",
    .replaces = "a view, two shifts and a stack",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
    .tolerance = {.compare = Compare::kExact},
    .canonicalize = &Canonicalize,
    .differentiable = false,
};

}  // namespace lz::ops::mlp_linear_prepack
