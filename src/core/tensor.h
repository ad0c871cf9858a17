// Sizes and place of a tensor.
#pragma once

#include <cstdint>

#include "layerzero/c_abi.h"

namespace lz {

constexpr int64_t ItemSize(const lz_tensor& t) { return int64_t{t.dtype.bits} * t.dtype.lanes / 8; }
constexpr int64_t NumElements(const lz_tensor& t) {  // 0 for an absent one
  int64_t n = t.ndim >= 0;
  for (int32_t i = 0; i < t.ndim; ++i) n *= t.shape[i];
  return n;
}
constexpr int64_t NumBytes(const lz_tensor& t) { return NumElements(t) * ItemSize(t); }
constexpr bool IsCpu(const lz_device& device) { return device.type == 1; }

}  // namespace lz
