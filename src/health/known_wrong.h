// The quarantine that the library carries: results that are known to be wrong, of other libraries' kernels too.
#pragma once

#include <string_view>
#include <vector>

namespace lz {

std::vector<std::string_view> KnownWrong();  // texts for ReadQuarantine

}  // namespace lz
