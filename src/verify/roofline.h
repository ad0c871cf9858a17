// What this machine can do at most, measured: reading memory, and multiplying. The roofs beside which kernels are
// judged (Williams, Waterman, Patterson 2009, Roofline).
#pragma once

#include <cstdint>

#include "layerzero/c_abi.h"
#include "verify/case.h"

namespace lz::verify {

// Reads `bytes` from `data` once, split over the threads; gives the sum of the words, so that nothing is left out.
LZ_VERIFY_API uint64_t ReadStream(const void* data, int64_t bytes, const lz_parallel& parallel);

// f32 multiply-adds that every thread does in registers, of which `rounds` are 256 each; gives their number.
LZ_VERIFY_API int64_t MultiplyAdds(int64_t rounds, const lz_parallel& parallel);

}  // namespace lz::verify
