// Memory for tests of what kernels read and write.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <system_error>

namespace lz::testing {

// Bytes that end where a page without access begins: a read or write behind the end stops the test.
class GuardedBytes {
 public:
  explicit GuardedBytes(size_t bytes) {
    const size_t page = size_t(sysconf(_SC_PAGESIZE));
    const size_t used = (bytes + page - 1) / page * page;
    total_ = used + page;
    base_ = static_cast<char*>(mmap(nullptr, total_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (base_ == MAP_FAILED || mprotect(base_ + used, page, PROT_NONE) != 0) {  // no guard, no test
      throw std::system_error(errno, std::generic_category(), "memory with a page without access behind it");
    }
    data_ = base_ + used - bytes;
  }
  GuardedBytes(const GuardedBytes&) = delete;
  GuardedBytes& operator=(const GuardedBytes&) = delete;
  ~GuardedBytes() { munmap(base_, total_); }
  char* data() const { return data_; }

 private:
  char* base_;
  char* data_;
  size_t total_;
};

}  // namespace lz::testing
