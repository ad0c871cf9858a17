// Checks that the kernels and libraries that a policy names exist.
#pragma once

#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"
#include "policy/policy.h"
#include "registry/registry.h"

namespace lz {

using LibraryNames = std::set<std::string, std::less<>>;

// A kConfig status for the first name that does not exist, with the closest one. A glob is checked for its library if
// that is written out ("hwy.*"). `later`: libraries whose kernels are registered when they are first needed. `op`:
// locks and rules about other operations are skipped.
Status CheckKernelNames(const Policy& policy, const Registry& registry, const LibraryNames& later,
                        const Operation* op = nullptr);

// All names of an operation: its id, flat name and aliases.
std::vector<std::string_view> NamesOf(const Operation& op, std::string_view id);
// True if the rule's operation, a glob, matches one of them.
bool IsAbout(const Rule& rule, const Operation& op, std::string_view id);
// "did you mean norm.rms?", otherwise how to list them.
std::string NearestOperationFix(const Registry& registry, std::string_view name);
// The same for the kernels of `op`.
std::string NearestKernelFix(const Registry& registry, std::string_view id, const Operation* op);

}  // namespace lz
