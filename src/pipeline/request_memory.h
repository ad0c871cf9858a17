// Where the elements of tensors are in memory. Views of one memory may interleave without sharing any (keys and values
// of a cache in one tensor).
#pragma once

#include "base/export.h"
#include "layerzero/c_abi.h"

namespace lz {

LZ_OWN bool IsDense(const lz_tensor& t);                           // row-major without gaps, or empty
bool RepeatsMemory(const lz_tensor& t);                            // two elements of one tensor share memory
LZ_OWN bool SharesMemory(const lz_tensor& a, const lz_tensor& b);  // an element of each share memory

}  // namespace lz
