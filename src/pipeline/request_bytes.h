// The bytes that the elements of a request's tensors take.
#pragma once

#include <cstdint>

#include "pipeline/request.h"

namespace lz {

int64_t NumElements(const lz_tensor& t);
int64_t NumBytes(const lz_tensor& t);
uint64_t InputBytes(const Request& request, size_t input, DType dtype);  // bytes of a copy in this dtype
uint64_t OutputBytes(const OutputShape& output);
uint64_t CallBytes(const Request& request);  // bytes of all inputs and outputs

}  // namespace lz
