// tokenize.decode: the texts of token ids.
#pragma once

#include "ops/common/tokens.h"

namespace lz::ops::tokenize_decode {

enum Tensor { kIds, kStarts, kText, kEnds };
enum Axis { kNumIds, kBounds };

inline constexpr auto kVariants = std::to_array<Variant>({{"tokenize.decode"}});
inline constexpr auto kParams =
    tokens::Params(TensorParam("ids", "num_ids", kIndices, "the ids of all texts, one after another"),
                   TensorParam("starts", "bounds", kIndices, "first id of each text, then the end"),
                   Bool("skip_special_tokens", true, "leave special tokens out"), std::array<Param, 0>{});
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
        "them; bytes that do not fit are left out. The texts are those of the library that the tokenizer was "
        "registered with: each is UTF-8, in which U+FFFD represents bytes of the ids that are no character, for "
        "instance where ids begin or end inside one. Byte-level tokenizers write one U+FFFD for each beginning of a "
        "character that does not go on, those of byte fallback one for each byte. An id that is no token has no text "
        "where the library leaves it out (tokenizers), else the call fails. Of tokenizer 0 the byte of an id is its "
        "lowest eight bits, and its texts are any bytes.",
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
