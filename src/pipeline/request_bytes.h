// The bytes that the elements of a request's tensors take.
#pragma once

#include <cstdint>

#include "core/tensor.h"
#include "pipeline/request.h"

namespace lz {

uint64_t InputBytes(const BoundCall& call, size_t input, DType dtype);  // bytes of a copy in this dtype
uint64_t OutputBytes(const OutputShape& output);
uint64_t CallBytes(const BoundCall& call);  // bytes of all inputs and outputs

}  // namespace lz
