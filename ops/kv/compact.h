// kv.compact: moves blocks of a paged cache within it, in place.
#pragma once

#include <array>
#include <vector>

#include "ops/common/kv_rows.h"

namespace lz::ops::kv_compact {

enum Tensor { kKeyCache, kValueCache, kMoves };
enum Axis { kBlocks, kBlockSize, kHKV, kDK, kDV, kM };

inline constexpr auto kVariants = std::to_array<Variant>({{"kv.compact"}});
inline constexpr auto kParams = std::to_array<Param>({
    Mutated(TensorParam("key_cache", "blocks, block_size, h_kv, d_k", kv::kCacheDTypes,
                        "key blocks; the order of the axes within a block is free")),
    Mutated(SameDType(TensorParam("value_cache", "blocks, block_size, h_kv, d_v", kv::kCacheDTypes, "value blocks"),
                      "key_cache")),
    TensorParam("moves", "m, 2", kIndices, "pairs (from, to) of blocks; a negative `from`: nothing to move"),
});

inline constexpr Contract kContract = {
    .name = "kv_compact",
    .summary = "Copies blocks of a paged cache within it, in place.",
    .definition =
        "cache[to] = cache[from] for every pair whose `from` is not negative, for keys and values, bit for bit; all "
        "other blocks are unchanged. A block outside the cache is an error, and so is a target that another pair "
        "reads or writes: then nothing is written.",
    .source = "definition; with block numbers from KVCacheManager it is copy on write, or defragmentation",
    .replaces = "key_cache[to] = key_cache[from]; value_cache[to] = value_cache[from]",
    .variants = kVariants,
    .params = kParams,
    .outputs = {},
    .tolerance = {.compare = Compare::kExact},
    .differentiable = false,
};

// 0, or the error with which a launch must refuse the pairs.
inline int32_t CheckMoves(const View& moves, int64_t blocks) {
  std::vector<int64_t> targets, sources;
  for (int64_t i = 0; i < moves.size(0); ++i) {
    const int64_t from = moves.GetInt({i, 0}), to = moves.GetInt({i, 1});
    if (from < 0) continue;
    if (from >= blocks || to < 0 || to >= blocks) return kv::kSlotOutOfRange;
    targets.push_back(to);
    sources.push_back(from);
  }
  std::ranges::sort(targets);
  if (std::ranges::adjacent_find(targets) != targets.end()) return kv::kPairInvalid;
  const auto is_target = [&](int64_t block) { return std::ranges::binary_search(targets, block); };
  return std::ranges::any_of(sources, is_target) ? kv::kPairInvalid : 0;
}

}  // namespace lz::ops::kv_compact
