// Divides the columns of a product among the caller's threads, for libraries that run each part on one thread.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/launch.h"

namespace lz::gemm {

// Calls body(first, columns) for parts of the n output columns of a product of [rows, k] and [n, k].
template <class Body>
void ForColumns(const lz_kernel_args* args, int64_t rows, int64_t n, int64_t k, Body&& body) {
  constexpr int64_t kColumns = 64;       // the unit in which threads share the work
  constexpr int64_t kGrain = 64 * 4096;  // products: about 5 us
  const int64_t grain = kGrain / (rows * k * kColumns + 1) + 1;
  ParallelFor(args, (n + kColumns - 1) / kColumns, grain, [&](int64_t begin, int64_t end) {
    body(begin * kColumns, std::min(end * kColumns, n) - begin * kColumns);
  });
}

}  // namespace lz::gemm
