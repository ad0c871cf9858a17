// Scratch memory of one thread: grows to the largest request and is reused. Freed when the thread ends.
#pragma once

#include <cstddef>
#include <cstdlib>

namespace lz {

class Arena {
 public:
  Arena() = default;
  ~Arena() { std::free(data_); }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // 64-byte aligned, valid until the next call; nullptr if it cannot be allocated.
  void* Get(size_t bytes) {
    if (bytes <= size_) return data_;
    std::free(data_);
    size_ = (bytes + 4095) / 4096 * 4096;
    data_ = std::aligned_alloc(64, size_);
    if (!data_) size_ = 0;
    return data_;
  }
  size_t size() const { return size_; }

  static Arena& OfThisThread() {
    thread_local Arena arena;
    return arena;
  }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace lz
