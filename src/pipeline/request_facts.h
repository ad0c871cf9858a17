// The words of a request that selection compares, and the value of a row's field; RefreshFacts is in request.h.
#pragma once

#include <map>
#include <string>

#include "pipeline/request.h"

namespace lz {

// The dtype of an input after the plan's casts, as a kernel sees it.
DType EffectiveDType(const BoundCall& r, size_t input);

// The options of a bound call besides axes and dtypes, by parameter: choices and booleans that differ from their
// defaults, "given" for optional tensors and numbers that were given, "weight.last_dim_stride1": "false" for
// tensors whose rows are not dense, such as weights stored as [inputs, outputs], and "key_cache.dtype": "float8_e4m3fn"
// for tensors of one byte an element that might have the first tensor's dtype.
std::map<std::string, std::string> OptionsOf(const BoundCall& r);

}  // namespace lz
