// Attention over packed sequences as one dense or paged problem each: many run in parallel, few one after another with
// the threads inside.
#pragma once

#include <atomic>
#include <cstring>
#include <limits>

#include "kernels/attention/problem.h"

namespace lz::attention {

// Clears the queries that belong to no sequence.
inline void ClearRest(const Problem& p, int64_t first, int64_t total) {
  const int64_t size = ByteSize(p.dtype);
  for (int64_t i = first; i < total; ++i) {
    for (int64_t h = 0; h < p.h_q; ++h) {
      std::memset(p.out.data + (i * p.out.seq + h * p.out.head) * size, 0, size_t(p.d_v * size));
      if (p.lse) p.lse[i * p.lse_s + h * p.lse_h] = -std::numeric_limits<float>::infinity();
    }
  }
}

// `all`: what the sequences share, with upper bounds of their lengths; `problem_of(s)`: sequence s, b = 1. Returns 0,
// or 1 if the workspace is too small: that of `all` is enough, since Run processes fewer heads together if more do
// not fit.
template <class ProblemOf>
int32_t RunSequences(const Problem& all, int64_t sequences, const lz_kernel_args* args, const ProblemOf& problem_of) {
  if (all.h_q == 0) return 0;
  const Plan plan = MakePlan(all, args->parallel);
  if (args->workspace_bytes < plan.bytes()) return 1;
  const int64_t workers = std::min(plan.slots, sequences);
  if (sequences < 2 * workers || workers <= 1) {
    int32_t failed = 0;
    for (int64_t s = 0; s < sequences; ++s) failed |= Run(problem_of(s), args);
    return failed;
  }
  std::atomic<int64_t> next = 0;
  std::atomic<int32_t> failed = 0;
  ParallelFor(args, workers, 1, [&](int64_t begin, int64_t end) {
    for (int64_t w = begin; w < end; ++w) {
      lz_kernel_args own = *args;  // one thread with its part of the scratch
      own.parallel = nullptr;
      own.workspace = static_cast<float*>(args->workspace) + w * plan.slot_floats;
      own.workspace_bytes = uint64_t(plan.slot_floats) * sizeof(float);
      for (int64_t s; (s = next.fetch_add(1, std::memory_order_relaxed)) < sequences;) {
        if (Run(problem_of(s), &own) != 0) failed.store(1, std::memory_order_relaxed);
      }
    }
  });
  return failed;
}

}  // namespace lz::attention
