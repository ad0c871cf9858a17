// f(gate) * up over rows, CPU SIMD: what the gated activations share.
// Include inside HWY_NAMESPACE's file only, after kernels/simd.h.
#if defined(LZ_KERNELS_ACTIVATION_GATED_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LZ_KERNELS_ACTIVATION_GATED_H_
#undef LZ_KERNELS_ACTIVATION_GATED_H_
#else
#define LZ_KERNELS_ACTIVATION_GATED_H_
#endif

#include <algorithm>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/launch.h"
#include "kernels/simd.h"

HWY_BEFORE_NAMESPACE();
namespace lz {
namespace HWY_NAMESPACE {

// out[i] = f(d, gate[i]) * up[i] in FP32, rounded once. `out` may be `gate` or `up`.
template <class T, class F>
HWY_INLINE void GatedRow(const T* gate, const T* up, T* out, int64_t n, const F& f) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    StoreF32(d, hn::Mul(f(d, LoadF32(d, gate + i)), LoadF32(d, up + i)), out + i);
  }
  if (i < n) {
    const size_t rest = size_t(n - i);
    StoreF32N(d, hn::Mul(f(d, LoadF32N(d, gate + i, rest)), LoadF32N(d, up + i, rest)), out + i, rest);
  }
}

template <class T>
struct GatedRows {
  T* data;
  RowOffsets offsets;
};

// All rows of n elements. 16k elements take about 4 us on one core: less is not worth waking another.
template <class T, class F>
void GatedLoop(const lz_kernel_args* args, int64_t rows, int64_t n, const GatedRows<const T>& gate,
               const GatedRows<const T>& up, const GatedRows<T>& out, const F& f) {
  constexpr int64_t kBlock = 2048, kGrain = 16384;
  if (gate.offsets.dense(n) && up.offsets.dense(n) && out.offsets.dense(n)) {
    const int64_t total = rows * n;
    ParallelFor(args, (total + kBlock - 1) / kBlock, kGrain / kBlock, [&](int64_t begin, int64_t end) {
      const int64_t first = begin * kBlock, count = std::min(end * kBlock, total) - first;
      GatedRow(gate.data + first, up.data + first, out.data + first, count, f);
    });
    return;
  }
  ParallelFor(args, rows, kGrain / (n + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      GatedRow(gate.data + gate.offsets[r], up.data + up.offsets[r], out.data + out.offsets[r], n, f);
    }
  });
}

// Tensors gate, up [..., n] and out, all of one dtype.
template <class F>
int32_t RunGated(const lz_kernel_args* args, const lz_tensor& gate, const lz_tensor& up, const lz_tensor& out,
                 const F& f) {
  return WithFloatType(DTypeOf(gate), [&](auto t) {
    using T = decltype(t);
    GatedLoop<T>(args, NumRows(gate), gate.shape[gate.ndim - 1], {Data<const T>(gate), RowOffsets(gate)},
                 {Data<const T>(up), RowOffsets(up)}, {Data<T>(out), RowOffsets(out)}, f);
    return int32_t{0};
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace lz
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
