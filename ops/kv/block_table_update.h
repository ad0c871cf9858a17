// kv.block_table_update: writes entries of a block table, in place.
#pragma once

#include <array>

#include "core/contract.h"

namespace lz::ops::kv_block_table_update {

enum Tensor { kBlockTables, kUpdates };
enum Axis { kB, kMaxBlocks, kU };

inline constexpr auto kVariants = std::to_array<Variant>({{"kv.block_table_update"}});
inline constexpr auto kParams = std::to_array<Param>({
    Mutated(IndexTensor("block_tables", "b, max_blocks", "block numbers of each sequence")),
    TensorParam("updates", "u, 3", kIndices, "triples (sequence, position, block)"),
});

inline constexpr Contract kContract = {
    .name = "kv_block_table_update",
    .summary = "Writes entries of a block table, in place.",
    .definition =
        "block_tables[sequence, position] = block for every triple, in order: of two for one entry the later one "
        "remains; other entries are unchanged. A sequence or position outside the table, and a block that the table's "
        "dtype cannot represent, are errors, and nothing is written; -1 is a block like any other (an entry that is "
        "not in use).",
    .source = "definition",
    .replaces = "block_tables[updates[:, 0], updates[:, 1]] = updates[:, 2]",
    .variants = kVariants,
    .params = kParams,
    .outputs = {},
    .tolerance = {.compare = Compare::kExact},
    .differentiable = false,
};

}  // namespace lz::ops::kv_block_table_update
