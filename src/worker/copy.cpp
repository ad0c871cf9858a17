#include "worker/copy.h"

#include <algorithm>
#include <cstring>

#include "core/limits.h"
#include "core/tensor.h"

namespace lz::worker {
namespace {

// Bytes from which threads copy, and of one of them. A team costs tens of microseconds, and more while a side spins.
constexpr int64_t kThreaded = 4 << 20, kGrain = 1 << 20;

void CopyBytes(char* to, const char* from, int64_t bytes, const lz_parallel& threads) {
  if (!threads.run || threads.num_threads < 2 || bytes < kThreaded) {
    std::memcpy(to, from, size_t(bytes));
    return;
  }
  struct Range {
    char* to;
    const char* from;
  } range{to, from};
  threads.run(
      threads.self, 0, bytes, kGrain,
      [](int64_t begin, int64_t end, void* context) {
        const auto* mine = static_cast<Range*>(context);
        std::memcpy(mine->to + begin, mine->from + begin, size_t(end - begin));
      },
      &range);
}

// Axes with the longest step in the copy first, so that the last one is dense there.
struct Axes {
  Axes(const lz_tensor& t, const int64_t* strides) {
    for (int i = 0; i < t.ndim; ++i) {
      if (t.shape[i] > 1) order[count++] = i;
    }
    std::sort(order, order + count, [&](int a, int b) { return strides[a] > strides[b]; });
  }
  int order[kMaxRank], count = 0;
};

// Copies rows of the last axis one after another.
template <class Row>
void ForEachRow(const lz_tensor& t, const Axes& axes, int at, const char* from, Row&& row) {
  if (at >= axes.count - 1) return row(from);
  const int axis = axes.order[at];
  const int64_t step = t.strides[axis] * ItemSize(t);
  for (int64_t i = 0; i < t.shape[axis]; ++i) ForEachRow(t, axes, at + 1, from + i * step, row);
}

template <size_t kItem>
void CopyItems(char* to, const char* from, int64_t count, int64_t step) {
  for (int64_t i = 0; i < count; ++i) std::memcpy(to + i * int64_t(kItem), from + i * step, kItem);
}

void CopyRow(char* to, const char* from, int64_t count, int64_t step, int64_t item) {
  if (step == item) {
    std::memcpy(to, from, size_t(count * item));
    return;
  }
  switch (item) {
    case 1: return CopyItems<1>(to, from, count, step);
    case 2: return CopyItems<2>(to, from, count, step);
    case 4: return CopyItems<4>(to, from, count, step);
    case 8: return CopyItems<8>(to, from, count, step);
    default: return CopyItems<16>(to, from, count, step);
  }
}

}  // namespace

void CopyDense(const lz_tensor& t, char* to, const int64_t* strides, const lz_parallel& threads) {
  const char* const from = static_cast<const char*>(t.data) + t.byte_offset;
  if (NumElements(t) == 0) return;
  bool is_dense = true;
  for (int i = 0; i < t.ndim; ++i) is_dense &= t.shape[i] <= 1 || t.strides[i] == strides[i];
  if (is_dense) return CopyBytes(to, from, NumBytes(t), threads);
  const Axes axes(t, strides);
  const int64_t item = ItemSize(t), last = axes.count > 0 ? axes.order[axes.count - 1] : -1;
  const int64_t count = last >= 0 ? t.shape[last] : 1, step = last >= 0 ? t.strides[last] * item : item;
  ForEachRow(t, axes, 0, from, [&](const char* row) {
    CopyRow(to, row, count, step, item);
    to += count * item;
  });
}

}  // namespace lz::worker
