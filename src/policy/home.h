// Paths that begin with "~/", the home folder.
#pragma once

#include <string_view>

namespace lz {

// True for a path of a policy that still begins with "~/" (WithHome of values.h): no home folder is known, and nothing
// is read or written there.
inline bool LacksHome(std::string_view path) { return path.starts_with("~/"); }

}  // namespace lz
