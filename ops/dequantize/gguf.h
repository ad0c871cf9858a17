// dequantize.gguf: converts blocks of GGUF's 4-bit to 8-bit formats to floats.
#pragma once

#include <array>

#include "ops/common/gguf.h"

namespace lz::ops::dequantize_gguf {

enum Tensor { kData, kOutput };
enum Scalar { kColumns, kFormat, kDType };
using namespace lz::ops::gguf;

inline constexpr auto kVariants = std::to_array<Variant>({{"dequantize.gguf"}});
inline constexpr auto kParams = std::to_array<Param>({
    TensorParam("data", "n, row_bytes", Mask(DType::kU8), "rows of blocks as stored in the file"),
    RequiredInt("columns", "values in a row: a multiple of 32, for K formats of 256"),
    KeywordOnly(RequiredChoice("format", kFormatNames, "the blocks' format")),
    KeywordOnly(Choice("dtype", "float32|bfloat16|float16", 0, "dtype of the output")),
});
inline constexpr auto kOutputs = std::to_array<Output>({
    {.name = "output",
     .shape = "n, columns",
     .dtype = "float32",
     .doc = "the values, in the file's order",
     .dtype_choice = "dtype"},
});

inline Status Canonicalize(BoundArgs& args) {
  return CheckRows(args.scalars[kFormat].value.i, args.scalars[kColumns].value.i, args.tensors[kData].shape[1],
                   "columns", "data");
}

inline constexpr Contract kContract = {
    .name = "dequantize_gguf",
    .summary = "Dequantizes rows of GGUF blocks (Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K).",
    .definition =
        "Numbers are little endian, d and m float16; in float32 arithmetic, each operation rounded, then rounded once "
        "to dtype. Blocks of 32: d, in q4_1 and q5_1 then m, in q5_0 and q5_1 then 32 high bits, then the codes: 16 "
        "bytes, byte j holding value j in its low half and value j + 16 in its high half; in q8_0 32 signed bytes. "
        "q4_0 d * (code - 8), q5_0 d * (code - 16), q4_1 and q5_1 (d * code) + m, q8_0 d * code. Blocks of 256: q4_k "
        "d, m, 12 bytes with 8 scales s and 8 minima t of 6 bits (the first four of each in the low bits of bytes 0 to "
        "7, the others in bytes 8 to 11 with their two high bits above those), in q5_k 32 bytes of high bits, bit i "
        "for values 32 i to 32 i + 31, then 128 bytes: byte 32 c + j holds values 64 c + j and 64 c + 32 + j. Value "
        "i: (d * s[i / 32]) * code - (m * t[i / 32]). q6_k: 128 bytes of low halves, 64 of two high bits, 16 signed "
        "scales, d: (d * s[i / 16]) * (code - 32); of 128 values, value 32 c + j takes the low (c < 2) or high half of "
        "byte j + 32 (c % 2) and bits 2 c of byte j",
    .source = "GGUF specification and ggml-quants of ggml (block_q4_0 to block_q6_K)",
    .replaces = "gguf.dequantize(data, qtype) and a copy into a tensor",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
    .tolerance = {.compare = Compare::kExact},
    .canonicalize = &Canonicalize,
    .differentiable = false,
};

}  // namespace lz::ops::dequantize_gguf
