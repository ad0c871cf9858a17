#include "worker/blocks.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "worker/message.h"

namespace lz::worker {

Blocks::Blocks(uint64_t size) { free_.emplace(kDataAt, size - kDataAt); }

Blocks::~Blocks() { ReleaseFreed(); }

std::optional<uint64_t> Blocks::Allocate(uint64_t bytes) {
  ReleaseFreed();
  bytes = std::max(Aligned(bytes), kAlignment);
  const auto found = std::ranges::find_if(free_, [&](const auto& part) { return part.second >= bytes; });
  if (found == free_.end()) return {};
  const auto [offset, available] = *found;
  free_.erase(found);
  if (available > bytes) free_.emplace(offset + bytes, available - bytes);
  used_.emplace(offset, bytes);
  held_ += bytes;
  return offset;
}

void Blocks::Shrink(uint64_t offset, uint64_t bytes) {
  bytes = std::max(Aligned(bytes), kAlignment);
  const auto found = used_.find(offset);
  if (found == used_.end() || found->second <= bytes) return;
  Add(offset + bytes, found->second - bytes);
  held_ -= found->second - bytes;
  found->second = bytes;
}

void Blocks::Release(uint64_t offset) {
  const auto found = used_.find(offset);
  if (found == used_.end()) return;  // pinned
  held_ -= found->second;
  Add(offset, found->second);
  used_.erase(found);
}

void Blocks::ReleaseLater(uint64_t offset) {
  auto* one = new Freed{freed_.load(std::memory_order_relaxed), offset};
  while (!freed_.compare_exchange_weak(one->next, one, std::memory_order_release, std::memory_order_relaxed)) {
  }
}

void Blocks::ReleaseFreed() {
  Freed* one = freed_.exchange(nullptr, std::memory_order_acquire);
  while (one) {
    Release(one->offset);
    delete std::exchange(one, one->next);
  }
}

void Blocks::Pin() {
  is_pinned_ = true;
  used_.clear();
}

uint64_t Blocks::most() const {
  uint64_t most = 0;
  for (const auto& [offset, bytes] : free_) most = std::max(most, bytes);
  return most;
}

void Blocks::Add(uint64_t offset, uint64_t bytes) {
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && next->first == offset + bytes) {
    bytes += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      before->second += bytes;
      return;
    }
  }
  free_.emplace(offset, bytes);
}

}  // namespace lz::worker
