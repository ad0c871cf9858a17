// What the files that write the engine's values as JSON share.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "core/dtype.h"
#include "platform/device.h"
#include "registry/operation.h"

namespace lz {

struct KernelEntry;
struct Request;
struct SelectionReport;

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

// The number of a field as users write it.
std::string ValueText(const Operation& op, const Field* field, int64_t value);

// SHA-256 of the kernels' hash, this build and a device: everything besides the policy and measured times that a choice
// may depend on.
std::string CapabilitiesHashOf(const std::string& kernels, const Device& device);

// The kind of work that an operation does, by the first name of its id: "tensor", "sampling", ...
std::string_view OpKind(std::string_view id);

// The kernel that the call would have got if it were compiled for its kind of calls; null: the one that it got.
Json WantedJson(const SelectionReport& report);
// The kind of calls that the chosen kernel was compiled for; null for one that is not compiled while the process runs.
Json KindJson(const Request& r, const SelectionReport& report, const KernelEntry& kernel, const Device& device);

}  // namespace lz
