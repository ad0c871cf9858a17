// dequantize.gguf: blocks of GGUF's 4-bit and 8-bit formats as floats.
#pragma once

#include <array>
#include <string>

#include "core/contract.h"

namespace lz::ops::dequantize_gguf {

enum Tensor { kData, kOutput };
enum Scalar { kColumns, kFormat, kDType };
enum Format { kQ4_0, kQ4_1, kQ8_0 };

inline constexpr int64_t kBlockColumns = 32;
inline constexpr std::array<int64_t, 3> kBlockBytes = {18, 20, 34};  // of each Format

inline constexpr auto kVariants = std::to_array<Variant>({{"dequantize.gguf"}});
inline constexpr auto kParams = std::to_array<Param>({
    TensorParam("data", "n, row_bytes", Mask(DType::kU8), "rows of blocks as they lie in the file"),
    RequiredInt("columns", "values in a row: a multiple of 32"),
    KeywordOnly(RequiredChoice("format", "q4_0|q4_1|q8_0", "the blocks' format")),
    KeywordOnly(Choice("dtype", "float32|bfloat16|float16", 0, "of the output")),
});
inline constexpr auto kOutputs = std::to_array<Output>({
    {.name = "output",
     .shape = "n, columns",
     .dtype = "float32",
     .doc = "the values, in the file's order",
     .dtype_choice = "dtype"},
});

inline Status Canonicalize(BoundArgs& args) {
  const int64_t columns = args.scalars[kColumns].value.i;
  if (columns < 0 || columns % kBlockColumns != 0) {
    return Status(StatusCode::kInvalidRequest, {.field = "columns",
                                                .wanted = "a multiple of 32, not negative",
                                                .got = std::to_string(columns),
                                                .fix = "pass the unquantised row length"});
  }
  const int64_t wanted = columns / kBlockColumns * kBlockBytes[size_t(args.scalars[kFormat].value.i)];
  const int64_t row_bytes = args.tensors[kData].shape[1];
  if (row_bytes == wanted) return {};
  return Status(StatusCode::kInvalidRequest, {.field = "data",
                                              .wanted = std::to_string(wanted) + " bytes a row",
                                              .got = std::to_string(row_bytes),
                                              .fix = "check format and columns: a block of 32 values has 18 (q4_0), "
                                                     "20 (q4_1) or 34 (q8_0) bytes"});
}

inline constexpr Contract kContract = {
    .name = "dequantize_gguf",
    .summary = "Dequantises rows of GGUF blocks (Q4_0, Q4_1, Q8_0).",
    .definition =
        "A block holds 32 values: a float16 scale d (little endian), for q4_1 a float16 minimum m, then the codes. "
        "4-bit "
        "codes: byte j holds value j in its low half and value j + 16 in its high half; q8_0: 32 signed bytes. In "
        "float32 "
        "arithmetic, each operation rounded: q4_0 d * (code - 8), q4_1 (d * code) + m, q8_0 d * code; then rounded "
        "once "
        "to dtype",
    .source = "GGUF specification and ggml-quants of ggml (block_q4_0, block_q4_1, block_q8_0)",
    .replaces = "gguf.dequantize(data, qtype) and a copy into a tensor",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
    .tolerance = {.compare = Compare::kExact},
    .canonicalize = &Canonicalize,
    .differentiable = false,
};

}  // namespace lz::ops::dequantize_gguf
