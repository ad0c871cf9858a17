#include "base/memory.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <string>

namespace lz {
namespace {

// The number after `key` in a small file of the operating system's kernel; -1: none. With an empty key the file is
// the number.
int64_t NumberIn(const char* path, std::string_view key) {
  std::ifstream file(path);
  std::string word;
  bool found = key.empty();
  while (file >> word) {
    int64_t value;
    if (found) return std::from_chars(word.data(), word.data() + word.size(), value).ec == std::errc() ? value : -1;
    found = word == key;
  }
  return -1;
}

}  // namespace

int64_t FreeHostBytes() {
  const int64_t kilobytes = NumberIn("/proc/meminfo", "MemAvailable:");
  const int64_t free = kilobytes < 0 ? -1 : kilobytes * 1024;
  const int64_t limit = NumberIn("/sys/fs/cgroup/memory.max", ""), used = NumberIn("/sys/fs/cgroup/memory.current", "");
  if (limit < 0 || used < 0) return free;
  const int64_t in_group = std::max<int64_t>(0, limit - used);
  return free < 0 ? in_group : std::min(free, in_group);
}

}  // namespace lz
