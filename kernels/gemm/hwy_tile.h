// The register tile of the linear kernels: rows of input times four rows of weights, vectors along k. Nothing is
// packed: both operands are read as they are stored, and each sum is folded at the end. Input of f32 also works with
// weights of f16. Include only from files that Highway compiles per target (after hwy/highway.h and kernels/simd.h).
#if defined(LZ_KERNELS_GEMM_HWY_TILE_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LZ_KERNELS_GEMM_HWY_TILE_H_
#undef LZ_KERNELS_GEMM_HWY_TILE_H_
#else
#define LZ_KERNELS_GEMM_HWY_TILE_H_
#endif

#include <cstdint>
#include <cstring>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/simd.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE {

using DF = hn::ScalableTag<float>;
using VF = hn::Vec<DF>;

// Elements as f32 vectors: one for f32 and f16, which is converted; two for bf16, where a shift and a mask split a
// whole vector into its even and odd elements.
template <class T>
struct Parts;
template <>
struct Parts<float> {
  static constexpr int kCount = 1;
  static HWY_INLINE void Load(const float* p, VF* v) { v[0] = hn::LoadU(DF(), p); }
};
template <>
struct Parts<F16> {
  static constexpr int kCount = 1;
  static HWY_INLINE void Load(const F16* p, VF* v) { v[0] = LoadF32(DF(), p); }
};
template <>
struct Parts<BF16> {
  static constexpr int kCount = 2;
  static HWY_INLINE void Load(const BF16* p, VF* v) {
    const hn::Repartition<uint16_t, DF> d16;
    const hn::RebindToUnsigned<DF> d32;
    const auto pairs = hn::BitCast(d32, hn::LoadU(d16, &p->bits));
    v[0] = hn::BitCast(DF(), hn::ShiftLeft<16>(pairs));
    v[1] = hn::BitCast(DF(), hn::And(pairs, hn::Set(d32, 0xffff0000u)));
  }
};

// Lane c = the sum of all lanes of v[c].
HWY_INLINE hn::Vec<hn::Full128<float>> SumOfEach(const VF* v) {
  const hn::Repartition<uint64_t, DF> d64;
  const auto ab = hn::Add(hn::InterleaveLower(DF(), v[0], v[1]), hn::InterleaveUpper(DF(), v[0], v[1]));
  const auto cd = hn::Add(hn::InterleaveLower(DF(), v[2], v[3]), hn::InterleaveUpper(DF(), v[2], v[3]));
  const auto ab64 = hn::BitCast(d64, ab), cd64 = hn::BitCast(d64, cd);
  const auto low = hn::BitCast(DF(), hn::InterleaveLower(d64, ab64, cd64));
  const auto high = hn::BitCast(DF(), hn::InterleaveUpper(d64, ab64, cd64));
  const auto sum = hn::Add(low, high);  // of each 128-bit block
#if HWY_TARGET <= HWY_AVX3
  const hn::Half<DF> d256;
  const auto sum256 = hn::Add(hn::LowerHalf(d256, sum), hn::UpperHalf(d256, sum));
  const hn::Half<decltype(d256)> d128;
  return hn::Add(hn::LowerHalf(d128, sum256), hn::UpperHalf(d128, sum256));
#elif HWY_TARGET == HWY_AVX2
  const hn::Half<DF> d128;
  return hn::Add(hn::LowerHalf(d128, sum), hn::UpperHalf(d128, sum));
#else
  return sum;
#endif
}

template <class T, class X = T>
struct Tile {
  static_assert(Parts<T>::kCount == Parts<X>::kCount);
  static constexpr int kColumns = 4;
  // The capacity of the vector registers; bf16 needs two for each row of input.
#if HWY_TARGET <= HWY_AVX3 || HWY_TARGET == HWY_NEON
  static constexpr int kMaxRows = Parts<T>::kCount == 1 ? 6 : 4;
#else
  static constexpr int kMaxRows = Parts<T>::kCount == 1 ? 3 : 2;
#endif
  static constexpr int kParts = Parts<T>::kCount;
  static constexpr int kStep = kParts * int(hn::MaxLanes(DF()));

  template <int M>
  struct Sums {
    // More than one chain of sums if there are too few products to hide the latency.
    static constexpr int kChains = M == 1 ? kParts : 1;
    VF v[M][kChains][kColumns];
  };

  template <int M>
  static HWY_INLINE void Step(const X* const* x, const T* const* w, int64_t i, int64_t prefetch, Sums<M>& sums) {
    VF xs[M][kParts];
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) Parts<X>::Load(x[m] + i, xs[m]);
#pragma GCC unroll 8
    for (int c = 0; c < kColumns; ++c) {
      VF ws[kParts];
      Parts<T>::Load(w[c] + i, ws);
      hwy::Prefetch(reinterpret_cast<const char*>(w[c] + i) + prefetch);
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m)
#pragma GCC unroll 8
        for (int p = 0; p < kParts; ++p) {
          VF& sum = sums.v[m][p % Sums<M>::kChains][c];
          sum = hn::MulAdd(xs[m][p], ws[p], sum);
        }
    }
  }

  // The last values of N rows, fewer than kStep, followed by zeros.
  template <int N, class E>
  struct Rest {
    HWY_NOINLINE Rest(const E* const* from, int64_t begin, int64_t end) {
      for (int i = 0; i < N; ++i) {
        std::memcpy(values[i], from[i] + begin, size_t(end - begin) * sizeof(E));
        rows[i] = values[i];
      }
    }
    E values[N][kStep] = {};
    const E* rows[N];
  };

  // sums[m * stride + c] = sum_i x[m][i] * w[c][i], added to the previous value if `add`. `prefetch`: prefetch distance
  // in bytes.
  template <int M>
  static void Run(const X* const* x, const T* const* w, int64_t k, int64_t prefetch, bool add, float* out,
                  int64_t stride) {
    Sums<M> sums;
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m)
#pragma GCC unroll 8
      for (int s = 0; s < Sums<M>::kChains; ++s)
#pragma GCC unroll 8
        for (int c = 0; c < kColumns; ++c) sums.v[m][s][c] = hn::Zero(DF());
    int64_t i = 0;
    for (; i + kStep <= k; i += kStep) Step<M>(x, w, i, prefetch, sums);
    if (i < k) {
      const Rest<M, X> xs(x, i, k);
      const Rest<kColumns, T> ws(w, i, k);
      Step<M>(xs.rows, ws.rows, 0, 0, sums);
    }
    const hn::Full128<float> d4;
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
#pragma GCC unroll 8
      for (int s = 1; s < Sums<M>::kChains; ++s)
#pragma GCC unroll 8
        for (int c = 0; c < kColumns; ++c) sums.v[m][0][c] = hn::Add(sums.v[m][0][c], sums.v[m][s][c]);
      const auto four = SumOfEach(sums.v[m][0]);
      hn::StoreU(add ? hn::Add(four, hn::LoadU(d4, out + m * stride)) : four, d4, out + m * stride);
    }
  }

  static void Store(const float* sums, const T* bias, int64_t columns, T* out) {
    const DF d;
    const int64_t lanes = int64_t(hn::Lanes(d));
    int64_t c = 0;
    for (; c + lanes <= columns; c += lanes) {
      const auto sum = hn::LoadU(d, sums + c);
      StoreF32(d, bias ? hn::Add(sum, LoadF32(d, bias + c)) : sum, out + c);
    }
    for (; c < columns; ++c) FromFloat(sums[c] + (bias ? ToFloat(bias[c]) : 0.0f), out + c);
  }
};

}  // namespace lz::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
