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

}  // namespace lz
