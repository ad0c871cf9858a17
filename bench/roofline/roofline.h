// The limits of this machine, measured: reading and copying memory, and multiplying, the roofs that kernels are
// compared with (Williams, Waterman, Patterson 2009, Roofline); and the cost of sharing work among its threads.
#pragma once

#include <cstdint>

#include "layerzero/c_abi.h"

namespace lz::roofline {

// Reads `bytes` from `data` once, split over the threads; returns the sum of the words, so that no read is
// optimized away.
uint64_t ReadStream(const void* data, int64_t bytes, const lz_parallel& parallel);

// Copies `bytes` from `from` to `to` once, split over the threads, with ordinary stores, as kernels use.
void CopyStream(const void* from, void* to, int64_t bytes, const lz_parallel& parallel);

// `rounds` of f32 multiply-adds in registers, by every thread, each with as many as keep its units busy. Returns
// their number.
int64_t MultiplyAdds(int64_t rounds, const lz_parallel& parallel);

// Products of one row of activations with weights that are widened first: a roof for each storage format of weights.
enum class StoredAs : int32_t { kNumbers, kHalfBytes, kIntegers, kFloats };  // kNumbers: nothing to widen; of bytes
enum class MultipliedAs : int32_t { kF32, kBF16, kInt8 };

// `rounds` over quantized weights in the L1 cache, by every thread. Returns the number of weights; 0: this CPU has no
// loop for them, and MultiplyAdds is the known roof.
int64_t MultiplyWeights(StoredAs stored, MultipliedAs as, int64_t rounds, const lz_parallel& parallel);

// Seconds per parallel loop whose parts, one per thread, wait for each other and do nothing else: the mean of `loops`.
// With `team` the loops are those of one `Team`, as in a program. A part that has waited for 10 ms continues alone.
double ForkJoin(int64_t loops, const lz_parallel& parallel, bool team);

}  // namespace lz::roofline
