// Which parts of the memory that a process shares with a worker are free. The process alone decides it; a worker gets
// offsets. Not thread-safe, except ReleaseLater.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>

#include "base/export.h"

namespace lz::worker {

class LZ_OWN Blocks {
 public:
  explicit Blocks(uint64_t size);  // bytes of the memory
  ~Blocks();
  Blocks(const Blocks&) = delete;
  Blocks& operator=(const Blocks&) = delete;

  // The offset of a new block, the first that fits; nothing if none does.
  std::optional<uint64_t> Allocate(uint64_t bytes);
  // Releases what a block has after its first `bytes`.
  void Shrink(uint64_t offset, uint64_t bytes);
  void Release(uint64_t offset);
  // From any thread, at any time: the block is free at the next Allocate.
  void ReleaseLater(uint64_t offset);
  // The blocks in use now are never released: a forked child still reads them.
  void Pin();

  bool is_pinned() const { return is_pinned_; }
  uint64_t held() const { return held_; }  // bytes of all blocks in use
  uint64_t most() const;                   // bytes of the largest free part
  size_t free_parts() const { return free_.size(); }

 private:
  struct Freed {
    Freed* next;
    uint64_t offset;
  };
  void ReleaseFreed();
  void Add(uint64_t offset, uint64_t bytes);

  std::map<uint64_t, uint64_t> free_, used_;  // offset -> bytes
  uint64_t held_ = 0;
  bool is_pinned_ = false;
  std::atomic<Freed*> freed_{nullptr};
};

}  // namespace lz::worker
