// Finds elements of tensors that share bytes. Views of one memory may interleave without sharing any (keys and values
// of a cache in one tensor).
#pragma once

#include "layerzero/c_abi.h"

namespace lz {

bool RepeatsMemory(const lz_tensor& t);                     // two elements of one tensor share memory
bool SharesMemory(const lz_tensor& a, const lz_tensor& b);  // an element of each share memory

}  // namespace lz
