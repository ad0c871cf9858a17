// What the files that write the engine's values as JSON share.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "core/dtype.h"

namespace lz {

using Json = nlohmann::ordered_json;

inline std::string Dump(const Json& j) { return j.dump(-1, ' ', false, Json::error_handler_t::replace); }

// Names of dtypes.
inline Json Names(DTypeMask mask) {
  Json names = Json::array();
  for (size_t i = 1; i < kDTypes.size(); ++i) {
    if (mask >> i & 1) names.push_back(kDTypes[i].name);
  }
  return names;
}

// The kind of work that an operation does, by the first name of its id: "tensor", "sampling", ...
std::string_view OpKind(std::string_view id);

}  // namespace lz
