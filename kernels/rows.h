// f of the elements of one or more tensors, row by row, CPU SIMD: the loop of the element-wise kernels.
// Include inside HWY_NAMESPACE's file only, after kernels/simd.h.
#if defined(LZ_KERNELS_ROWS_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LZ_KERNELS_ROWS_H_
#undef LZ_KERNELS_ROWS_H_
#else
#define LZ_KERNELS_ROWS_H_
#endif

#include <algorithm>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/launch.h"
#include "kernels/simd.h"

HWY_BEFORE_NAMESPACE();
namespace lz {
namespace HWY_NAMESPACE {

// out[i] = f(d, in[i]...) in FP32, rounded once. `out` may be one of `in`.
template <class T, class F, class... In>
HWY_INLINE void MapRow(T* out, int64_t n, const F& f, const In*... in) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) StoreF32(d, f(d, LoadF32(d, in + i)...), out + i);
  if (i < n) {
    const size_t rest = size_t(n - i);
    StoreF32N(d, f(d, LoadF32N(d, in + i, rest)...), out + i, rest);
  }
}

template <class T>
struct Rows {
  T* data;
  RowOffsets offsets;
};

template <class T>
Rows<T> RowsOf(const lz_tensor& t) {
  return {Data<T>(t), RowOffsets(t)};
}

// All rows of n elements. 16k elements take about 4 us on one core: less is not worth waking another.
template <class T, class F, class... In>
void MapRows(const lz_kernel_args* args, int64_t rows, int64_t n, const F& f, const Rows<T>& out,
             const Rows<const In>&... in) {
  constexpr int64_t kBlock = 2048, kGrain = 16384;
  if (out.offsets.dense(n) && (in.offsets.dense(n) && ...)) {
    const int64_t total = rows * n;
    ParallelFor(args, (total + kBlock - 1) / kBlock, kGrain / kBlock, [&](int64_t begin, int64_t end) {
      const int64_t first = begin * kBlock, count = std::min(end * kBlock, total) - first;
      MapRow(out.data + first, count, f, (in.data + first)...);
    });
    return;
  }
  ParallelFor(args, rows, kGrain / (n + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) MapRow(out.data + out.offsets[r], n, f, (in.data + in.offsets[r])...);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace lz
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
