// Products of attention for few query rows: dot products and weighted sums that read the cache directly, FP32
// arithmetic. Include only from files that Highway compiles per target (after kernels/simd.h).
#if defined(LZ_KERNELS_ATTENTION_PRODUCTS_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LZ_KERNELS_ATTENTION_PRODUCTS_H_
#undef LZ_KERNELS_ATTENTION_PRODUCTS_H_
#else
#define LZ_KERNELS_ATTENTION_PRODUCTS_H_
#endif

#include "kernels/attention/softmax.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE::attn {

// Stores the sums of four vectors as four floats at out.
template <class DV>
HWY_INLINE void StoreBlockSum(DV d, hn::Vec<DV> v, float* out) {
  if constexpr (hn::MaxLanes(DV()) > 4) {
    const hn::Half<DV> dh;
    StoreBlockSum(dh, hn::Add(hn::LowerHalf(dh, v), hn::UpperHalf(dh, v)), out);
  } else {
    hn::StoreU(v, d, out);
  }
}
HWY_INLINE void StoreSum4(V a, V b, V c, V e, float* out) {
  const hn::Repartition<double, D> d64;
  const auto ab = hn::BitCast(d64, hn::Add(hn::InterleaveLower(kD, a, b), hn::InterleaveUpper(kD, a, b)));
  const auto ce = hn::BitCast(d64, hn::Add(hn::InterleaveLower(kD, c, e), hn::InterleaveUpper(kD, c, e)));
  const auto even = hn::BitCast(kD, hn::InterleaveLower(d64, ab, ce));
  const auto odd = hn::BitCast(kD, hn::InterleaveUpper(d64, ab, ce));
  StoreBlockSum(kD, hn::Add(even, odd), out);
}

// Prefetches a row of a later step: in most caches the rows of one head are far apart, which the hardware prefetcher
// does not follow. kLevel: 3 for L1, 2 for L2.
template <int kLevel, class T>
HWY_INLINE void PrefetchRow(const T* row, int64_t d) {
  for (int64_t i = 0; i < d; i += int64_t(64 / sizeof(T))) __builtin_prefetch(row + i, 0, kLevel);
}

// Prefetches the next of `rows` rows, if one is left: that of each head for a key, then those of the next key.
template <class T>
HWY_INLINE void AskNext(const T* const* first, int64_t head_stride, int64_t d, int64_t heads, int64_t rows, Asked& a) {
  if (a.key * heads >= rows) return;
  PrefetchRow<2>(first[a.key] + a.head * head_stride, d);
  if (++a.head == heads) a.head = 0, ++a.key;
}
struct Nothing {
  HWY_INLINE void operator()(int64_t) const {}
};
inline constexpr Nothing kNothing;

// Otherwise GCC would load a vector again for each use, and the loads would take longer than the arithmetic.
HWY_INLINE void KeepLoaded(V& v) {
#if HWY_ARCH_X86 && !HWY_COMPILER_MSVC
  if constexpr (kL >= 16) asm("" : "+v"(v.raw));
#endif
}

// s[r][j] = q[r] . k[j] for R rows and keys [0, n), 4 G keys at a time; k[j] + at is a valid row up to the next
// multiple. fetch(j) prefetches for later while key j is processed.
template <int R, int G, class T, class Fetch>
HWY_INLINE void Dots(const float* HWY_RESTRICT q, int64_t q_stride, const T* const* k, int64_t at, int64_t n, int64_t d,
                     float* HWY_RESTRICT s, const Fetch& fetch) {
  for (int64_t j = 0; j < n; j += 4 * G) {
    LZ_UNROLL for (int c = 0; c < 4 * G; ++c) fetch(j + c);
    const T* row[4 * G];
    LZ_UNROLL for (int c = 0; c < 4 * G; ++c) row[c] = k[j + c] + at;
    V acc[R][4 * G], lo, hi;
    LZ_UNROLL for (int r = 0; r < R; ++r) { LZ_UNROLL for (int c = 0; c < 4 * G; ++c) acc[r][c] = hn::Zero(kD); }
    int64_t i = 0;
    for (; i + kPair <= d; i += kPair) {
      V q_lo[R], q_hi[R];
      LZ_UNROLL for (int r = 0; r < R; ++r) {
        q_lo[r] = hn::Load(kD, q + r * q_stride + i);
        q_hi[r] = hn::Load(kD, q + r * q_stride + i + kL);
        KeepLoaded(q_lo[r]);
        KeepLoaded(q_hi[r]);
      }
      LZ_UNROLL for (int c = 0; c < 4 * G; ++c) {
        LoadPair(row[c] + i, lo, hi);
        LZ_UNROLL for (int r = 0; r < R; ++r) {
          acc[r][c] = hn::MulAdd(lo, q_lo[r], acc[r][c]);
          acc[r][c] = hn::MulAdd(hi, q_hi[r], acc[r][c]);
        }
      }
    }
    if (i < d) {
      LZ_UNROLL for (int c = 0; c < 4 * G; ++c) {
        LoadPairN(row[c] + i, d - i, lo, hi);
        LZ_UNROLL for (int r = 0; r < R; ++r) {
          acc[r][c] = hn::MulAdd(lo, hn::Load(kD, q + r * q_stride + i), acc[r][c]);
          acc[r][c] = hn::MulAdd(hi, hn::Load(kD, q + r * q_stride + i + kL), acc[r][c]);
        }
      }
    }
    LZ_UNROLL for (int r = 0; r < R; ++r) {
      LZ_UNROLL for (int c = 0; c < 4 * G; c += 4) {
        StoreSum4(acc[r][c], acc[r][c + 1], acc[r][c + 2], acc[r][c + 3], s + r * kBlock + j + c);
      }
    }
  }
}

// o[r][col ..] = alpha[r] o[r][col ..] + sum over j < n of p[r][j] v[j][at + col ..], C pairs wide; tail: C == 1 and
// only `tail` elements of the pair exist. U keys have separate accumulators to hide latency. fetch(j): as in Dots,
// called once per `strips` keys, because `strips` strips share the prefetches.
template <int R, int C, int U, bool kTail, class T, class Fetch>
HWY_INLINE void WeightedStrip(const float* HWY_RESTRICT p, const T* const* v, int64_t at, int64_t n, int64_t col,
                              int64_t tail, float* HWY_RESTRICT o, int64_t o_stride, const float* alpha, int64_t strips,
                              const Fetch& fetch) {
  V acc[U][R][2 * C], lo, hi;
  LZ_UNROLL for (int r = 0; r < R; ++r) {
    const auto a = hn::Set(kD, alpha[r]);
    LZ_UNROLL for (int c = 0; c < 2 * C; ++c) {
      acc[0][r][c] = hn::Mul(a, hn::Load(kD, o + r * o_stride + col + c * kL));
      LZ_UNROLL for (int u = 1; u < U; ++u) acc[u][r][c] = hn::Zero(kD);
    }
  }
  int64_t j = 0, wait = 0;
  const auto step = [&](int u, int64_t key) HWY_ATTR {
    if constexpr (!std::is_same_v<Fetch, Nothing>) {
      if (wait == 0) fetch(key), wait = strips;
      --wait;
    }
    LZ_UNROLL for (int c = 0; c < C; ++c) {
      if constexpr (kTail) {
        LoadPairN(v[key] + at + col, tail, lo, hi);
      } else {
        LoadPair(v[key] + at + col + c * kPair, lo, hi);
      }
      LZ_UNROLL for (int r = 0; r < R; ++r) {
        const auto w = hn::Set(kD, p[r * kBlock + key]);
        acc[u][r][2 * c] = hn::MulAdd(lo, w, acc[u][r][2 * c]);
        acc[u][r][2 * c + 1] = hn::MulAdd(hi, w, acc[u][r][2 * c + 1]);
      }
    }
  };
  for (; j + U <= n; j += U) {
    LZ_UNROLL for (int u = 0; u < U; ++u) step(u, j + u);
  }
  for (; j < n; ++j) step(0, j);
  LZ_UNROLL for (int r = 0; r < R; ++r) {
    LZ_UNROLL for (int c = 0; c < 2 * C; ++c) {
      auto sum = acc[0][r][c];
      LZ_UNROLL for (int u = 1; u < U; ++u) sum = hn::Add(sum, acc[u][r][c]);
      hn::Store(sum, kD, o + r * o_stride + col + c * kL);
    }
  }
}

template <int R, class T, class Fetch>
HWY_INLINE void Weighted(const float* p, const T* const* v, int64_t at, int64_t n, int64_t d, float* o,
                         int64_t o_stride, const float* alpha, const Fetch& fetch) {
  constexpr int kU = R == 1 ? 2 : 1;
  constexpr int kC = R == 1 ? 2 : (R == 2 || kL >= 16 ? 2 : 1);
  const int64_t strips = d / (kC * kPair) + (d % (kC * kPair) + kPair - 1) / kPair;
  int64_t col = 0;
  for (; col + kC * kPair <= d; col += kC * kPair) {
    WeightedStrip<R, kC, kU, false>(p, v, at, n, col, 0, o, o_stride, alpha, strips, fetch);
  }
  for (; col + kPair <= d; col += kPair) {
    WeightedStrip<R, 1, 2, false>(p, v, at, n, col, 0, o, o_stride, alpha, strips, fetch);
  }
  if (col < d) WeightedStrip<R, 1, 1, true>(p, v, at, n, col, d - col, o, o_stride, alpha, strips, fetch);
}

}  // namespace lz::HWY_NAMESPACE::attn
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
