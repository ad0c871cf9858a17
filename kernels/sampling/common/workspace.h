// Workspace of the sampling kernels: one slot for each group of rows that runs at once, divided into arrays.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "kernels/launch.h"

namespace lz {

// Each array has room for n elements and whole vectors past them.
struct RowWorkspace {
  float* x;                        // the row as f32
  float* w;                        // weights
  float* candidates;               // top-k's logits
  int32_t* index;                  // and their indices in the row
  std::array<float*, 2> select_x;  // SelectThreshold's rounds, alternating
  std::array<float*, 2> select_w;
  double* blocks;  // sums of the weights' blocks
};

constexpr int64_t PaddedElements(int64_t n) { return (n + 64 + 63) / 64 * 64; }
constexpr int64_t kRowArrays = 9;  // arrays of 4-byte elements: eight of the members, and the blocks' doubles in room
                                   // for a ninth
constexpr int64_t RowWorkspaceBytes(int64_t n) { return kRowArrays * 4 * PaddedElements(n); }

inline RowWorkspace CarveRowWorkspace(void* memory, int64_t n) {
  const int64_t stride = PaddedElements(n);
  auto* f = static_cast<float*>(memory);
  return {f,
          f + stride,
          f + 2 * stride,
          reinterpret_cast<int32_t*>(f + 3 * stride),
          {f + 4 * stride, f + 5 * stride},
          {f + 6 * stride, f + 7 * stride},
          reinterpret_cast<double*>(f + 8 * stride)};
}

// As many slots as rows can run at once; 16 if the host's threads are not known yet.
inline uint64_t RowsWorkspaceBytes(const lz_kernel_args* args, int64_t rows, int64_t n) {
  const int64_t threads = args->parallel ? std::max(1, args->parallel->num_threads) : 16;
  return uint64_t(std::min(rows, threads) * RowWorkspaceBytes(n));
}

// Calls body(row, workspace) for every row; each slot of the workspace serves one range of rows. Returns 1 if there is
// not even one slot.
template <class Body>
int32_t ParallelRows(const lz_kernel_args* args, int64_t rows, int64_t n, Body&& body) {
  const int64_t slot_bytes = RowWorkspaceBytes(n);
  const int64_t slots = std::min<int64_t>(rows, int64_t(args->workspace_bytes) / slot_bytes);
  if (slots < std::min<int64_t>(rows, 1)) return 1;
  // A row of 8k takes about 4 us: fewer elements than that do not pay for waking another thread.
  const int64_t grain = slots > 0 && rows / slots * n < 8192 ? slots : 1;
  ParallelFor(args, slots, grain, [&](int64_t begin, int64_t end) {
    for (int64_t slot = begin; slot < end; ++slot) {
      const RowWorkspace ws = CarveRowWorkspace(static_cast<char*>(args->workspace) + slot * slot_bytes, n);
      for (int64_t row = slot * rows / slots; row < (slot + 1) * rows / slots; ++row) body(row, ws);
    }
  });
  return 0;
}

// Offset in elements of the row-major index `row` over the first `axes` axes.
inline int64_t StridedOffset(const lz_tensor& t, int64_t row, int axes) {
  int64_t offset = 0;
  for (int i = axes - 1; i >= 0; --i) {
    offset += row % t.shape[i] * t.strides[i];
    row /= t.shape[i];
  }
  return offset;
}

}  // namespace lz
