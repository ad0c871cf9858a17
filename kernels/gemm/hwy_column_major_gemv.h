// Few rows of input times column-major weights, where value i of all outputs is contiguous, as in a tensor [k, n]:
// outputs are the lanes, and no sum is folded. Weights are read in memory order, kDepth values of k at a time, for as
// many outputs as have their sums in the L1 cache. Include only from files that Highway compiles per target.
#if defined(LZ_KERNELS_GEMM_HWY_COLUMN_MAJOR_GEMV_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LZ_KERNELS_GEMM_HWY_COLUMN_MAJOR_GEMV_H_
#undef LZ_KERNELS_GEMM_HWY_COLUMN_MAJOR_GEMV_H_
#else
#define LZ_KERNELS_GEMM_HWY_COLUMN_MAJOR_GEMV_H_
#endif

#include <algorithm>
#include <cstdint>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/launch.h"
#include "kernels/simd.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE::column_major {

using DF = hn::ScalableTag<float>;
using VF = hn::Vec<DF>;

constexpr int64_t kGemvRows = 4;
constexpr int64_t kGemvColumns = 1024;  // outputs for few rows: their sums take at most 16 KiB

// Value i of output c: data[i * stride + c].
template <class T>
struct Weight {
  // A matrix [outputs, k], or an expert's in [experts, outputs, k], from output `first` on.
  explicit Weight(const lz_tensor& w, int64_t expert = 0, int64_t first = 0)
      : data(Data<const T>(w) + (w.ndim > 2 ? expert * w.strides[0] : 0) + first),
        stride(w.strides[w.ndim - 1]),
        k(w.shape[w.ndim - 1]) {}
  const T* data;
  int64_t stride, k;
};

// Values of k per pass over the sums: with M rows, as many products as there are registers for factors.
template <int M>
constexpr int kDepth = HWY_TARGET <= HWY_AVX3 || HWY_TARGET == HWY_NEON ? (M <= 2 ? 8 : 4) : (M == 1 ? 8 : 8 / M);

// sums[m][c] (+)= the products of G values of k.
template <int M, int G, class T, class X>
HWY_INLINE void AddValues(const X* const* x, const T* w, int64_t stride, int64_t columns, bool add,
                          float (*sums)[kGemvColumns]) {
  const DF d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  VF xs[M][G];
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g) xs[m][g] = hn::Set(d, ToFloat(x[m][g]));
  const auto products = [&](const auto& load, VF* total) HWY_ATTR {
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g) {
      const VF ws = load(w + g * stride);
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) total[m] = g == 0 ? hn::Mul(xs[m][g], ws) : hn::MulAdd(xs[m][g], ws, total[m]);
    }
  };
  VF total[M];
  int64_t c = 0;
  for (; c + lanes <= columns; c += lanes) {
    products(
        [&](const T* from) HWY_ATTR {
          hwy::Prefetch(from + G * stride + c);
          return LoadF32(d, from + c);
        },
        total);
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m)
      hn::StoreU(add ? hn::Add(hn::LoadU(d, sums[m] + c), total[m]) : total[m], d, sums[m] + c);
  }
  if (c == columns) return;
  const size_t rest = size_t(columns - c);
  products([&](const T* from) HWY_ATTR { return LoadF32N(d, from + c, rest); }, total);
  for (int m = 0; m < M; ++m)
    StoreF32N(d, add ? hn::Add(LoadF32N(d, sums[m] + c, rest), total[m]) : total[m], sums[m] + c, rest);
}

// sums[m][c] of outputs [first, first + columns), at most kGemvColumns.
template <int M, class T, class X>
void SumGemv(const Weight<T>& w, const X* const* x, int64_t first, int64_t columns, float (*sums)[kGemvColumns]) {
  constexpr int kG = kDepth<M>;
  if (w.k == 0) {
    for (int m = 0; m < M; ++m) std::fill_n(sums[m], columns, 0.0f);
  }
  const X* xs[M];
  int64_t i = 0;
  const auto add = [&]<int G>() HWY_ATTR {
    for (int m = 0; m < M; ++m) xs[m] = x[m] + i;
    AddValues<M, G>(xs, w.data + i * w.stride + first, w.stride, columns, i > 0, sums);
    i += G;
  };
  while (i + kG <= w.k) add.template operator()<kG>();
  while (i < w.k) add.template operator()<1>();
}

template <class T, class X>
void SumGemv(const Weight<T>& w, const X* const* x, int64_t rows, int64_t first, int64_t columns,
             float (*sums)[kGemvColumns]) {
  switch (rows) {
    case 1: return SumGemv<1>(w, x, first, columns, sums);
    case 2: return SumGemv<2>(w, x, first, columns, sums);
    case 3: return SumGemv<3>(w, x, first, columns, sums);
    default: return SumGemv<4>(w, x, first, columns, sums);
  }
}

}  // namespace lz::HWY_NAMESPACE::column_major
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
