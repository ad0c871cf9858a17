// tokenize.encode: the token ids of texts.
#pragma once

#include "ops/common/tokens.h"

namespace lz::ops::tokenize_encode {

enum Tensor { kText, kStarts, kIds, kEnds, kSpans };
enum Axis { kBytes, kBounds };

inline constexpr auto kVariants = std::to_array<Variant>({{"tokenize.encode"}});
inline constexpr auto kParams = tokens::Params(
    TensorParam("text", "bytes", Mask(DType::kU8), "all texts, one after another, as UTF-8"),
    TensorParam("starts", "bounds", kIndices, "first byte of each text, then the end"),
    Bool("add_special_tokens", true, "add the ids that the tokenizer puts around a text"),
    std::to_array<Param>({
        KeywordOnly(Bool("return_offsets", false, "also return where each id comes from")),
        KeywordOnly(Bool("bpe_offsets", false, "LayerZero's own tokenizer has this tokenizer's offsets too")),
    }));
inline constexpr auto kDerived = std::to_array<DerivedFact>({
    {"bpe_lacks_offsets", "return_offsets * (1 - bpe_offsets)"},
});
inline constexpr auto kOutputs = std::to_array<Output>({
    {.name = "ids", .shape = "capacity", .dtype = "int32", .doc = "the ids of all texts, then zeros"},
    {.name = "ends", .shape = "bounds - 1", .dtype = "int64", .doc = "the end of each text's ids"},
    {.name = "spans",
     .shape = "capacity, 2",
     .dtype = "int32",
     .doc = "first character of the text that an id comes from, and the one after the last",
     .only_if = "return_offsets"},
});

inline constexpr Contract kContract = {
    .name = "tokenize_encode",
    .summary = "The token ids of texts.",
    .definition =
        "Text i is text[s_i : s_(i+1)] with s = starts, limited to [0, bytes] and not decreasing. ids has the ids of "
        "text 0, then those of text 1, and so on; ends[i] is the number of ids of texts 0 to i, whether or not "
        "`capacity` has room for them, and ids that do not fit are left out. Of tokenizer 0 an id's span is that of "
        "its byte. The ids are those of the library that the tokenizer was registered with; a kernel serves a "
        "tokenizer whose ids it is proven to have.",
    .source = "Sennrich et al. 2016, arXiv:1508.07909 (byte pair encoding)",
    .replaces = "tokenizer.encode_batch(texts)",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
    .derived = kDerived,
    .tolerance = {.compare = Compare::kExact},
    .canonicalize = &tokens::Canonicalize,
    .differentiable = false,
};

}  // namespace lz::ops::tokenize_encode
