// What a kernel returns that did not serve a call and wrote nothing, and the status of that: numbers of the C ABI.
#pragma once

#include "core/status.h"

#ifndef LZ_LAUNCH_REFUSED
#define LZ_LAUNCH_REFUSED 0x4C5A
#endif

namespace lz {
inline constexpr StatusCode kKernelRefusedCode = StatusCode(13);
}  // namespace lz
