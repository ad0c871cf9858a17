// Access to the arguments of native CPU kernels: typed data pointers and the host's threads.
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#include "layerzero/c_abi.h"

namespace lz {

template <class T>
T* Data(const lz_tensor& t) {
  return reinterpret_cast<T*>(static_cast<char*>(t.data) + t.byte_offset);
}
inline bool Given(const lz_tensor& t) { return t.ndim >= 0; }

// Product of all axes except the last.
inline int64_t NumRows(const lz_tensor& t) {
  int64_t rows = 1;
  for (int i = 0; i + 1 < t.ndim; ++i) rows *= t.shape[i];
  return rows;
}

// Elements from the first one to row `row`, counting all axes except the last in row-major order.
inline int64_t RowOffset(const lz_tensor& t, int64_t row) {
  int64_t offset = 0;
  for (int i = t.ndim - 2; i >= 0; --i) {
    offset += (row % t.shape[i]) * t.strides[i];
    row /= t.shape[i];
  }
  return offset;
}

// The offsets of the rows of [..., n]: offsets[row] in elements from the first, rows counted in row-major order of the
// leading axes. Axes that one stride can express are folded, so that the usual case is one multiplication.
class RowOffsets {
 public:
  explicit RowOffsets(const lz_tensor& t) {
    for (int i = t.ndim - 2; i >= 0; --i) {
      if (t.shape[i] == 1) continue;
      if (n_ > 0 && t.strides[i] == stride_[n_ - 1] * size_[n_ - 1]) {
        size_[n_ - 1] *= t.shape[i];
      } else {
        size_[n_] = t.shape[i];
        stride_[n_++] = t.strides[i];
      }
    }
  }
  int64_t operator[](int64_t row) const {
    if (n_ <= 1) return row * stride_[0];
    int64_t offset = 0;
    for (int i = 0; i < n_; ++i) {
      offset += (row % size_[i]) * stride_[i];
      row /= size_[i];
    }
    return offset;
  }
  // True if all rows have the same distance to the next: offsets[1].
  bool even() const { return n_ <= 1; }
  // True if rows of `width` elements are contiguous.
  bool dense(int64_t width) const { return n_ == 0 || (n_ == 1 && stride_[0] == width); }

 private:
  int n_ = 0;
  int64_t size_[8] = {};  // innermost first
  int64_t stride_[8] = {};
};

// Runs body(begin, end) over [0, count), on the caller's threads if there is more than one grain of work.
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
