// The words of a request that selection compares, and what they say of a row's field; RefreshFacts is request.h's.
#pragma once

#include "pipeline/request.h"

namespace lz {

// The dtype of an input as a kernel sees it, after the plan's casts.
DType EffectiveDType(const Request& r, size_t input);

}  // namespace lz
