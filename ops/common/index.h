// Element offsets in strided tensors, for references.
#pragma once

#include <cstdint>

#include "layerzero/c_abi.h"

namespace lz {

// Element offset of the row-major index `flat` over all axes of `t`.
inline int64_t ElementOffset(const lz_tensor& t, int64_t flat) {
  int64_t offset = 0;
  for (int i = t.ndim - 1; i >= 0; --i) {
    offset += (flat % t.shape[i]) * t.strides[i];
    flat /= t.shape[i];
  }
  return offset;
}

}  // namespace lz
