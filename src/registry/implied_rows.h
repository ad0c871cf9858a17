#pragma once

#include <deque>
#include <string>
#include <vector>

#include "core/kernel.h"
#include "registry/operation.h"

namespace lz {

// Rows that follow from a spec's own fields: what is missing there is unsupported.
// Texts that the rows view are added to `names`.
std::vector<Constraint> ImpliedRows(const Operation& op, const KernelSpec& spec, std::deque<std::string>* names);

}  // namespace lz
