// Reasons of calls, which no kernel has: they follow the kernels' codes in the table of reason.cpp.
#pragma once

#include "core/reason.h"

namespace lz {

// The dispatch table in force has no choice for the class of the call.
inline constexpr ReasonCode kPlanBucketMiss = ReasonCode::kCount;
inline constexpr size_t kNumReasonCodes = size_t(ReasonCode::kCount) + 1;

}  // namespace lz
