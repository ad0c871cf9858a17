// The facts of a policy (registry/field.h) as numbers for one operation. They are made when the policy is compiled.
#pragma once

#include <array>
#include <cstdint>

#include "core/status.h"
#include "policy/policy.h"
#include "registry/registry.h"

namespace lz {

using PolicyFacts = std::array<int64_t, size_t(PolicyField::kCount)>;

// A set of allowed values, in the operation's own numbering, that the policy does not restrict.
inline constexpr int64_t kAllAllowed = INT64_MAX;
PolicyFacts PolicyFactsOf(const Policy& policy, const Operation& op);

// A kConfig status for a dtype that no KV cache has, a quantized format or a numerics class that no operation has.
Status CheckFactNames(const Policy& policy, const Registry& registry);

}  // namespace lz
