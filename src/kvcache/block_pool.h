// The blocks of a KV cache: their users, the content that others may share, and the order of eviction.
//
// A block is free (no users, no reusable content), in use (one reference per sequence), or idle (no users, but a
// published prefix). Idle blocks are evicted least recently used first.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

namespace lz::kvcache {

// The content of a full block: its tokens after a prefix. A serial identifies one such content and is never
// reused, so equal serials mean equal tokens from the start. `salt` separates content that depends on more than
// tokens (an adapter).
struct PrefixKey {
  uint64_t parent = 0;  // serial of the previous block; 0: the start
  uint64_t salt = 0;
  std::span<const int32_t> tokens;
};

class BlockPool {
 public:
  explicit BlockPool(int32_t num_blocks);

  int32_t num_blocks() const { return int32_t(blocks_.size()); }
  int64_t num_free() const { return int64_t(free_.size()); }
  int64_t num_idle() const { return num_idle_; }
  int64_t num_evictions() const { return num_evictions_; }
  int32_t references(int32_t block) const { return blocks_[size_t(block)].references; }

  // Returns a block with one reference. At least one must be free or idle; an idle one is evicted only if none is free.
  int32_t Take();
  void AddReference(int32_t block);
  void Release(int32_t block);

  struct Shared {
    int32_t block;
    uint64_t serial;
  };
  std::optional<Shared> Find(const PrefixKey& key) const;
  // Publishes the content of an unpublished block and returns its serial. If another block has that content, it remains
  // the published one.
  uint64_t Publish(int32_t block, const PrefixKey& key);
  void Unpublish(int32_t block);  // before its content changes
  void UnpublishAll();

 private:
  static constexpr int32_t kNone = -1;
  struct Block {
    int32_t references = 0;
    int32_t older = kNone, newer = kNone;  // neighbors among the idle blocks
    uint64_t serial = 0;                   // serial of the published content; 0: none
    uint64_t parent = 0, salt = 0;
    std::vector<int32_t> tokens;
  };

  void MakeIdle(int32_t block);
  void LeaveIdle(int32_t block);
  static uint64_t Hash(const PrefixKey& key);
  static bool Holds(const Block& block, const PrefixKey& key);

  std::vector<Block> blocks_;
  std::vector<int32_t> free_;
  int32_t oldest_ = kNone, newest_ = kNone;
  int64_t num_idle_ = 0, num_evictions_ = 0;
  uint64_t last_serial_ = 0;
  std::unordered_multimap<uint64_t, int32_t> published_;  // by hash of the key; keys are compared in full
};

}  // namespace lz::kvcache
