// Numbers as people write them: 2, 0.1, 1e-06.
#pragma once

#include <charconv>
#include <string>

namespace lz {

inline std::string NumberText(double value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof(text), value).ptr};
}

}  // namespace lz
