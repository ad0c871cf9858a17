// What this machine can do at most, measured: reading and copying memory, and multiplying. The roofs beside which
// kernels are judged (Williams, Waterman, Patterson 2009, Roofline). And what it costs to share work among its threads.
#pragma once

#include <cstdint>

#include "layerzero/c_abi.h"
#include "verify/case.h"

namespace lz::verify {

// Reads `bytes` from `data` once, split over the threads; gives the sum of the words, so that nothing is left out.
LZ_VERIFY_API uint64_t ReadStream(const void* data, int64_t bytes, const lz_parallel& parallel);

// Copies `bytes` from `from` to `to` once, split over the threads, with ordinary stores as kernels have them.
LZ_VERIFY_API void CopyStream(const void* from, void* to, int64_t bytes, const lz_parallel& parallel);

// `rounds` of f32 multiply-adds in registers, by every thread: as many a round as keep its units busy. Gives their
// number.
LZ_VERIFY_API int64_t MultiplyAdds(int64_t rounds, const lz_parallel& parallel);

// Products of an input with weights that are widened first, one row of input: a roof for each way of storing weights.
enum class StoredAs : int32_t { kNumbers, kHalfBytes, kIntegers, kFloats };  // kNumbers: nothing to widen; of bytes
enum class MultipliedAs : int32_t { kF32, kBF16, kInt8 };

// `rounds` over codes that lie in a first-level cache, by every thread. Gives the number of weights; 0: this CPU has no
// loop for them, and MultiplyAdds is the roof that is known.
LZ_VERIFY_API int64_t MultiplyWeights(StoredAs stored, MultipliedAs as, int64_t rounds, const lz_parallel& parallel);

// Seconds that one parallel loop takes whose parts, one for each thread, wait for each other and do nothing else: the
// mean of `loops`. With `team` the loops are those of one `Team`, as a program's steps have them. A part that waits for
// 10 ms goes on alone.
LZ_VERIFY_API double ForkJoin(int64_t loops, const lz_parallel& parallel, bool team);

}  // namespace lz::verify
