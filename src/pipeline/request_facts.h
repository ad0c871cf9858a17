// The words of a request that selection compares, and what they say of a row's field; RefreshFacts is request.h's.
#pragma once

#include <map>
#include <string>

#include "pipeline/request.h"

namespace lz {

// The dtype of an input as a kernel sees it, after the plan's casts.
DType EffectiveDType(const Request& r, size_t input);

// What a bound call says beside axes and dtypes, by parameter: choices and booleans other than their defaults, "given"
// for tensors and numbers that may be left out and were not, and "weight.last_dim_stride1": "false" for tensors whose
// rows are not dense, such as weights that are stored as [inputs, outputs].
std::map<std::string, std::string> OptionsOf(const Request& r);

}  // namespace lz
