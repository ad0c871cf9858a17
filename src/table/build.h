// Decision trees of a table's entries, in the binary form.
#pragma once

#include <string>

#include "core/status.h"
#include "table/table.h"

namespace lz::table {

// kConfig, with `what` as the field: two entries choose different kernels for one call, or there are too many.
Result<std::string> Build(const Content& content, const std::string& what);

}  // namespace lz::table
