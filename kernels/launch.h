// What every native CPU kernel needs from its arguments: typed data pointers and the host's threads.
#pragma once

#include <cstdint>
#include <utility>

#include "layerzero/c_abi.h"

namespace lz {

template <class T>
T* Data(const lz_tensor& t) {
  return reinterpret_cast<T*>(static_cast<char*>(t.data) + t.byte_offset);
}
inline bool Given(const lz_tensor& t) { return t.ndim >= 0; }

// Product of all axes but the last.
inline int64_t NumRows(const lz_tensor& t) {
  int64_t rows = 1;
  for (int i = 0; i + 1 < t.ndim; ++i) rows *= t.shape[i];
  return rows;
}

// Elements from the first to row `row`, which counts all axes but the last in row-major order.
inline int64_t RowOffset(const lz_tensor& t, int64_t row) {
  int64_t offset = 0;
  for (int i = t.ndim - 2; i >= 0; --i) {
    offset += (row % t.shape[i]) * t.strides[i];
    row /= t.shape[i];
  }
  return offset;
}

// body(begin, end) over [0, count), on the caller's threads when there is more than one grain of work.
template <class Body>
void ParallelFor(const lz_kernel_args* args, int64_t count, int64_t grain, Body&& body) {
  if (count <= grain || args->parallel == nullptr || args->parallel->num_threads <= 1) {
    if (count > 0) body(int64_t{0}, count);
    return;
  }
  using Plain = std::remove_reference_t<Body>;
  args->parallel->run(
      args->parallel->self, 0, count, grain,
      [](int64_t begin, int64_t end, void* context) { (*static_cast<Plain*>(context))(begin, end); },
      const_cast<void*>(static_cast<const void*>(&body)));
}

}  // namespace lz
