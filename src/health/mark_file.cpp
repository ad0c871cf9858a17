#include "health/mark_file.h"

#include <cstdint>
#include <cstring>

namespace lz {

std::vector<std::string> MarksIn(std::string_view bytes, size_t slots, size_t slot_bytes) {
  std::vector<std::string> marks;
  if (bytes.size() != slots * slot_bytes) return marks;
  for (size_t slot = 0; slot < slots; ++slot) {
    const char* at = bytes.data() + slot * slot_bytes;
    uint32_t length;
    std::memcpy(&length, at, sizeof(length));
    if (length > 0 && length <= slot_bytes - sizeof(length)) marks.emplace_back(at + sizeof(length), length);
  }
  return marks;
}

}  // namespace lz
