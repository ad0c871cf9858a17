// Marks of kernels that this process is running for the first time, in a file that outlives it: a mark that an ended
// process has left says which kernel it never came back from. Memory that the file backs is written, nothing else, so a
// mark costs no system call.
#pragma once

#include <array>
#include <atomic>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace lz {

class Markers {
 public:
  static constexpr size_t kSlots = 64, kSlotBytes = 2048;  // runs at once, and the longest text of one

  // Sets a mark. Returns its slot; -1: none is free or the file cannot be made, and nothing is marked.
  int Enter(const std::string& folder, std::string_view text);
  void Leave(int slot);
  // In a child after fork: its marks go to a file of its own.
  void Forget();

  // The marks of ended processes in `folder`, whose files are removed.
  static std::vector<std::string> Collect(const std::string& folder);

 private:
  char* Memory(const std::string& folder);

  std::mutex mutex_;
  std::atomic<char*> memory_{nullptr};
  bool failed_ = false;
  std::array<std::atomic<bool>, kSlots> taken_ = {};
};

}  // namespace lz
