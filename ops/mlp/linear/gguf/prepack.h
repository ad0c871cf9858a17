// mlp.linear.gguf.prepack: rows of GGUF blocks in groups of 16, the order in which SIMD kernels read them
// without shuffles.
#pragma once

#include <array>

#include "ops/common/gguf.h"

namespace lz::ops::mlp_linear_gguf_prepack {
using namespace lz::ops::gguf;

enum Tensor { kWeight, kPacked };
enum Scalar { kK, kFormat };

inline constexpr auto kVariants = std::to_array<Variant>({{"mlp.linear.gguf.prepack"}});
inline constexpr auto kParams = std::to_array<Param>({
    TensorParam("weight", "n, row_bytes", Mask(DType::kU8), "rows of blocks as stored in the file"),
    RequiredInt("k", "values in a row: a multiple of 32, for K formats of 256"),
    RequiredChoice("format", kFormatNames, "the blocks' format: one of q4_0, q4_1, q8_0, q4_k, q6_k"),
});
inline constexpr auto kOutputs = std::to_array<Output>({
    {.name = "packed",
     .shape = "(n + 15) / 16, " LZ_GGUF_PACKED_BYTES,
     .dtype = "uint8",
     .doc = "for the argument `packed` of linear_gguf"},
});

inline Status Canonicalize(BoundArgs& args) {
  const int64_t format = args.scalars[kFormat].value.i;
  LZ_RETURN_IF_ERROR(CheckPackable(format, "format"));
  return CheckRows(format, args.scalars[kK].value.i, args.tensors[kWeight].shape[1], "k", "weight");
}

inline constexpr Contract kContract = {
    .name = "linear_gguf_prepack",
    .summary = "Puts rows of GGUF blocks into the order that fast kernels of linear_gguf read.",
    .definition =
        "Groups of 16 rows, missing ones all 0: the codes of all blocks of 32 values, then their scales, rounded up to "
        "64 bytes. Codes: 4 x [16 rows][4 bytes], byte j of part c holding value 4 c + j low and 16 + 4 c + j high; "
        "q6_k then 2 x [16][4], bits 2 f of byte j of part h being the high bits of value 16 h + 4 f + j; q8_0 8 x "
        "[16][4], byte j of part c being value 4 c + j plus 128. Scales: q4_0 and q8_0 d[16]; q4_1 d[16], m[16]; q4_k "
        "for 256 values d[16], m[16], then 8 x (s[16], t[16]); q6_k for 256 values d[16], then 8 x (s of the first 16 "
        "values [16], of the others [16])",
    .source = "own",
    .replaces = "views, shifts and stacks of the blocks' bytes",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
    .tolerance = {.compare = Compare::kExact},
    .canonicalize = &Canonicalize,
    .differentiable = false,
};

}  // namespace lz::ops::mlp_linear_gguf_prepack
