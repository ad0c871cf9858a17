// Whether elements of tensors lie on each other, byte by byte: views of one memory may interleave without that (keys
// and values of a cache in one tensor).
#pragma once

#include "layerzero/c_abi.h"

namespace lz {

bool RepeatsMemory(const lz_tensor& t);                     // two elements of one tensor
bool SharesMemory(const lz_tensor& a, const lz_tensor& b);  // one of each

}  // namespace lz
