// embedding.lookup: rows of a table, by index.
#pragma once

#include <array>

#include "core/contract.h"

namespace lz::ops::embedding_lookup {

enum Tensor { kInput, kWeight, kOutput };

// The result of a launch with an id that is negative or not below `vocab`; nothing outside the table is read then.
inline constexpr int32_t kIdOutOfRange = 2;

inline constexpr auto kVariants = std::to_array<Variant>({{"embedding.lookup"}});
inline constexpr auto kParams = std::to_array<Param>({
    TensorParam("input", "...", kIndices, "row numbers, 0 <= id < vocab"),
    TensorParam("weight", "vocab, hidden", kAnyDType, "the table"),
});
inline constexpr auto kOutputs = std::to_array<Output>({
    {.name = "output", .shape = "..., hidden", .dtype = "weight", .doc = "row input[...] of weight"},
});

inline constexpr Contract kContract = {
    .name = "embedding",
    .summary = "Rows of a table, by index.",
    .definition = "output[..., i] = weight[input[...], i], bit for bit; an id out of range is an error",
    .source = "definition",
    .replaces = "torch.nn.functional.embedding(input, weight)",
    .variants = kVariants,
    .params = kParams,
    .outputs = kOutputs,
    .tolerance = {.compare = Compare::kExact},
};

}  // namespace lz::ops::embedding_lookup
