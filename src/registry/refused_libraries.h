// C libraries that LAYERZERO_LIBRARIES names and that the registry must not open, with the reason; filled before it is
// made (policy/trust.h).
#pragma once

#include <functional>
#include <map>
#include <string>

#include "core/reason.h"

namespace lz {

struct RefusedLibrary {
  std::string why;
  ReasonCode code = ReasonCode::kNotInstalled;
};
std::map<std::string, RefusedLibrary, std::less<>>& RefusedLibraries();  // by source; of the process

}  // namespace lz
