// Copies of tensors in host memory into dense ones of another process.
#pragma once

#include <cstdint>

#include "base/export.h"
#include "layerzero/c_abi.h"

namespace lz::worker {

// Copies a tensor to `to`, where it is dense with these strides: SetDenseStrides(tensor, strides). Tensors that are
// dense themselves are one copy of bytes, a large one by several threads.
LZ_OWN void CopyDense(const lz_tensor& tensor, char* to, const int64_t* strides, const lz_parallel& threads);

}  // namespace lz::worker
