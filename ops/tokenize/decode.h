// tokenize.decode: the texts of token ids.
#pragma once

#include "ops/common/tokens.h"

namespace lz::ops::tokenize_decode {

enum Tensor { kIds, kStarts, kText, kEnds };
enum Axis { kNumIds, kBounds };

inline constexpr auto kVariants = std::to_array<Variant>({{"tokenize.decode"}});
inline constexpr auto kParams = std::to_array<Param>({
    TensorParam("ids", "num_ids", Mask(DType::kI32), "the ids of all texts, one after another"),
    TensorParam("starts", "bounds", kIndices, "first id of each text, then the end"),
    RequiredInt("tokenizer", "number of a registered tokenizer in this process; 0: each byte is its own id"),
    RequiredInt("capacity", "number of bytes that the result has room for"),
    KeywordOnly(Bool("skip_special_tokens", true, "leave special tokens out")),
    tokens::Serves("bpe", "LayerZero's own tokenizer has this tokenizer's texts"),
    tokens::Serves("tokenizers", "so has the library tokenizers"),
    tokens::Serves("tiktoken", "so has tiktoken"),
    tokens::Serves("sentencepiece", "so has SentencePiece"),
});
inline constexpr auto kOutputs = std::to_array<Output>({
    {.name = "text", .shape = "capacity", .dtype = "uint8", .doc = "all texts as UTF-8, then zeros"},
    {.name = "ends", .shape = "bounds - 1", .dtype = "int64", .doc = "the end of each text's bytes"},
});

inline constexpr Contract kContract = {
    .name = "tokenize_decode",
    .summary = "The texts of token ids.",
    .definition =
        "Text i is that of ids[s_i : s_(i+1)] with s = starts, limited to [0, num_ids] and not decreasing. text has "
        "the bytes of all texts, ends[i] the number of bytes of texts 0 to i, whether or not `capacity` has room for "
        "them; bytes that do not fit are left out. Of tokenizer 0 the byte of an id is its lowest eight bits. The "
        "texts are those of the library that the tokenizer was registered with.",
    .source = "Sennrich et al. 2016, arXiv:1508.07909 (byte pair encoding)",
    .replaces = "tokenizer.decode_batch(ids)",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
    .tolerance = {.compare = Compare::kExact},
    .canonicalize = &tokens::Canonicalize,
    .differentiable = false,
};

}  // namespace lz::ops::tokenize_decode
