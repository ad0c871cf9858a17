// Files of C libraries that the host found in other packages, by the source of their kernels; set before the engine
// starts. Kernels open them when they are first called.
#pragma once

#include <string>
#include <string_view>

#include "base/export.h"

namespace lz {

LZ_OWN void SetFoundLibrary(std::string source, std::string path);
std::string FoundLibrary(std::string_view source);  // empty: none

}  // namespace lz
