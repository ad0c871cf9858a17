// The memory that this process may still allocate.
#pragma once

#include <cstdint>

namespace lz {

// Bytes that the system can provide without swapping, within the process's control group; -1 if unknown. Takes about
// 20 us.
int64_t FreeHostBytes();

}  // namespace lz
