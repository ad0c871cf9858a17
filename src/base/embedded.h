// Files that the build has put into the library (cmake/lz_embed.cmake): `#include "<name>.inc"` in an array of these.
#pragma once

#include <string_view>

namespace lz {

using std::string_view_literals::operator""sv;  // of the generated rows

struct Embedded {
  std::string_view name;
  std::string_view json;
};

}  // namespace lz
