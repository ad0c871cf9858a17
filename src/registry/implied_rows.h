#pragma once

#include <deque>
#include <string>
#include <vector>

#include "core/kernel.h"
#include "registry/operation.h"

namespace lz {

// Rows that follow from a spec's own fields: what a spec does not list is unsupported. Texts that the rows refer to are
// added to `names`.
std::vector<Constraint> ImpliedRows(const Operation& op, const KernelSpec& spec, std::deque<std::string>* names);

// Names of the quantized formats in the order of the field "format"; empty: the operation has none.
std::string_view QuantFormatsOf(const Operation& op);
// The inputs that are KV caches, and whether their layout is an argument.
std::vector<std::string_view> CachesOf(const Operation& op);
bool HasCacheLayouts(const Operation& op);

}  // namespace lz
