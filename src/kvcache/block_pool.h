// The blocks of a KV cache: who uses each, what a block holds that others may share, and which goes when room is
// needed.
//
// A block is free (nobody uses it, it holds nothing of use), in use (one reference for each sequence), or idle (nobody
// uses it, but it holds a published prefix). Idle blocks are evicted least recently used first.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

namespace lz::kvcache {

// What a full block holds: its tokens after a prefix. A serial names one such content and is never used again, so equal
// serials mean equal tokens all the way to the start. `salt` keeps apart what depends on more than tokens (an adapter).
struct PrefixKey {
  uint64_t parent = 0;  // serial of the block before; 0: the start
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

  // A block with one reference. At least one must be free or idle; an idle one is evicted only if none is free.
  int32_t Take();
  void AddReference(int32_t block);
  void Release(int32_t block);

  struct Shared {
    int32_t block;
    uint64_t serial;
  };
  std::optional<Shared> Find(const PrefixKey& key) const;
  // Makes known what an unpublished block holds; the serial of that content. What a block holds already stays that
  // one's.
  uint64_t Publish(int32_t block, const PrefixKey& key);
  void Unpublish(int32_t block);  // its content is about to change
  void UnpublishAll();

 private:
  static constexpr int32_t kNone = -1;
  struct Block {
    int32_t references = 0;
    int32_t older = kNone, newer = kNone;  // neighbours among the idle blocks
    uint64_t serial = 0;                   // of the published content; 0: none
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
