// How much memory this process may still take.
#pragma once

#include <cstdint>

namespace lz {

// Bytes that the system gives without swapping, within the process's control group; -1 where neither says. About 20 us.
int64_t FreeHostBytes();

}  // namespace lz
