// Blocks of a KV cache: reference counts, published prefixes, eviction.
#include "kvcache/block_pool.h"

#include <algorithm>
#include <numeric>

namespace lz::kvcache {

BlockPool::BlockPool(int32_t num_blocks) : blocks_(size_t(num_blocks)), free_(size_t(num_blocks)) {
  std::iota(free_.rbegin(), free_.rend(), 0);  // block 0 is used first
}

int32_t BlockPool::Take() {
  int32_t block = oldest_;
  if (!free_.empty()) {
    block = free_.back();
    free_.pop_back();
  } else {
    LeaveIdle(block);
    Unpublish(block);
    ++num_evictions_;
  }
  blocks_[size_t(block)].references = 1;
  return block;
}

void BlockPool::AddReference(int32_t block) {
  if (blocks_[size_t(block)].references++ == 0) LeaveIdle(block);
}

void BlockPool::Release(int32_t block) {
  Block& b = blocks_[size_t(block)];
  if (--b.references > 0) return;
  if (b.serial) {
    MakeIdle(block);
  } else {
    free_.push_back(block);
  }
}

void BlockPool::MakeIdle(int32_t block) {
  Block& b = blocks_[size_t(block)];
  b.older = newest_;
  b.newer = kNone;
  (newest_ == kNone ? oldest_ : blocks_[size_t(newest_)].newer) = block;
  newest_ = block;
  ++num_idle_;
}

void BlockPool::LeaveIdle(int32_t block) {
  Block& b = blocks_[size_t(block)];
  (b.older == kNone ? oldest_ : blocks_[size_t(b.older)].newer) = b.newer;
  (b.newer == kNone ? newest_ : blocks_[size_t(b.newer)].older) = b.older;
  b.older = b.newer = kNone;
  --num_idle_;
}

// Multiply and fold (the finalizer of SplitMix64): only speed depends on it.
uint64_t BlockPool::Hash(const PrefixKey& key) {
  const auto mix = [](uint64_t x) {
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
  };
  uint64_t hash = mix(key.parent * 0x9E3779B97F4A7C15u + key.salt);
  for (int32_t token : key.tokens) hash = mix(hash + uint32_t(token));
  return hash;
}

bool BlockPool::Holds(const Block& block, const PrefixKey& key) {
  return block.parent == key.parent && block.salt == key.salt && std::ranges::equal(block.tokens, key.tokens);
}

std::optional<BlockPool::Shared> BlockPool::Find(const PrefixKey& key) const {
  const auto [first, last] = published_.equal_range(Hash(key));
  for (auto it = first; it != last; ++it) {
    const Block& b = blocks_[size_t(it->second)];
    if (Holds(b, key)) return Shared{it->second, b.serial};
  }
  return std::nullopt;
}

uint64_t BlockPool::Publish(int32_t block, const PrefixKey& key) {
  if (const auto found = Find(key)) return found->serial;
  Block& b = blocks_[size_t(block)];
  b.serial = ++last_serial_;
  b.parent = key.parent;
  b.salt = key.salt;
  b.tokens.assign(key.tokens.begin(), key.tokens.end());
  published_.emplace(Hash(key), block);
  return b.serial;
}

void BlockPool::Unpublish(int32_t block) {
  Block& b = blocks_[size_t(block)];
  if (!b.serial) return;
  const auto [first, last] = published_.equal_range(Hash({b.parent, b.salt, b.tokens}));
  published_.erase(std::find_if(first, last, [block](const auto& entry) { return entry.second == block; }));
  b.serial = b.parent = b.salt = 0;
  b.tokens.clear();
}

void BlockPool::UnpublishAll() {
  while (oldest_ != kNone) {
    const int32_t block = oldest_;
    LeaveIdle(block);
    free_.push_back(block);
  }
  published_.clear();
  for (Block& b : blocks_) {
    b.serial = b.parent = b.salt = 0;
    b.tokens.clear();
  }
}

}  // namespace lz::kvcache
