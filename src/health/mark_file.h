// The file of a process's marks, as bytes.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace lz {

// The texts of the marks in the bytes of a file of `slots` slots of equal size; none if the size is another one. Each
// slot begins with the length of its text in 4 bytes, 0 if it is free.
std::vector<std::string> MarksIn(std::string_view bytes, size_t slots, size_t slot_bytes);

}  // namespace lz
