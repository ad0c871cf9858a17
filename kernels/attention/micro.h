// SIMD pieces of attention: pair loads, exp, dot products, weighted sums, packing. FP32 arithmetic throughout.
//
// Head dimensions are held in "pair order": blocks of two vectors (lo, hi). For f32 that is memory order; for bf16 lo
// holds the even and hi the odd elements of the block, which a shift and a mask extract from one load.
// Include inside HWY_NAMESPACE's file only (after kernels/simd.h).
#if defined(LZ_KERNELS_ATTENTION_MICRO_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LZ_KERNELS_ATTENTION_MICRO_H_
#undef LZ_KERNELS_ATTENTION_MICRO_H_
#else
#define LZ_KERNELS_ATTENTION_MICRO_H_
#endif

#include <cstring>

#include "kernels/attention/problem.h"
#include "kernels/simd.h"

#if defined(__clang__)
#define LZ_UNROLL _Pragma("clang loop unroll(full)")
#else
#define LZ_UNROLL _Pragma("GCC unroll 16")
#endif

HWY_BEFORE_NAMESPACE();
namespace lz {
namespace HWY_NAMESPACE {
namespace attn {

using attention::kBlock;
using D = hn::ScalableTag<float>;
using DU = hn::RebindToUnsigned<D>;
using V = hn::Vec<D>;
inline constexpr D kD{};
inline constexpr int kL = int(hn::MaxLanes(D()));
inline constexpr int kPair = 2 * kL;
inline constexpr int kMaxR = kL >= 16 ? 4 : 3;  // query rows that share the registers of one pass

HWY_INLINE void LoadPair(const float* p, V& lo, V& hi) {
  lo = hn::LoadU(kD, p);
  hi = hn::LoadU(kD, p + kL);
}
HWY_INLINE void SplitPair(hn::Vec<DU> u, V& lo, V& hi) {
  lo = hn::BitCast(kD, hn::ShiftLeft<16>(u));
  hi = hn::BitCast(kD, hn::And(u, hn::Set(DU(), 0xffff0000u)));
}
HWY_INLINE void LoadPair(const BF16* p, V& lo, V& hi) {
  SplitPair(hn::LoadU(DU(), reinterpret_cast<const uint32_t*>(p)), lo, hi);
}

// The first n < kPair elements, zeros after them; nothing beyond is read.
HWY_INLINE void LoadPairN(const float* p, int64_t n, V& lo, V& hi) {
  if constexpr (HWY_TARGET <= HWY_AVX2) {
    lo = hn::MaskedLoad(hn::FirstN(kD, size_t(n)), kD, p);
    hi = n > kL ? hn::MaskedLoad(hn::FirstN(kD, size_t(n - kL)), kD, p + kL) : hn::Zero(kD);
  } else {
    float buffer[kPair] = {};
    std::memcpy(buffer, p, size_t(n) * sizeof(float));
    LoadPair(buffer, lo, hi);
  }
}
HWY_INLINE void LoadPairN(const BF16* p, int64_t n, V& lo, V& hi) {
  if (HWY_TARGET <= HWY_AVX2 && n % 2 == 0) {
    const auto mask = hn::FirstN(DU(), size_t(n / 2));
    SplitPair(hn::MaskedLoad(mask, DU(), reinterpret_cast<const uint32_t*>(p)), lo, hi);
  } else {
    BF16 buffer[kPair] = {};
    std::memcpy(buffer, p, size_t(n) * sizeof(BF16));
    LoadPair(buffer, lo, hi);
  }
}

HWY_INLINE void StorePair(V lo, V hi, float* p) {
  hn::StoreU(lo, kD, p);
  hn::StoreU(hi, kD, p + kL);
}
HWY_INLINE hn::Vec<DU> RoundToBF16(V v) {  // the result's 16 bits stand in the upper half
  const DU d;
  const auto u = hn::BitCast(d, v);
  const auto odd = hn::And(hn::ShiftRight<16>(u), hn::Set(d, 1));
  const auto rounded = hn::Add(hn::Add(u, hn::Set(d, 0x7fff)), odd);
  return hn::IfThenElse(hn::RebindMask(d, hn::IsNaN(v)), hn::Or(u, hn::Set(d, 0x400000)), rounded);
}
HWY_INLINE void StorePair(V lo, V hi, BF16* p) {
  const auto upper = hn::And(RoundToBF16(hi), hn::Set(DU(), 0xffff0000u));
  const auto both = hn::Or(hn::ShiftRight<16>(RoundToBF16(lo)), upper);
  hn::StoreU(both, DU(), reinterpret_cast<uint32_t*>(p));
}
template <class T>
HWY_INLINE void StorePairN(V lo, V hi, T* p, int64_t n) {
  T buffer[kPair];
  StorePair(lo, hi, buffer);
  std::memcpy(p, buffer, size_t(n) * sizeof(T));
}

// e^x for x <= 0 (NaN stays NaN, below -87.3 gives 0), relative error under 2 ulp: x = n ln 2 + r, minimax in r.
HWY_INLINE V ExpNegative(V x) {
  const auto n = hn::Round(hn::Mul(x, hn::Set(kD, 1.442695041f)));
  auto r = hn::NegMulAdd(n, hn::Set(kD, 0.693145751953125f), x);
  r = hn::NegMulAdd(n, hn::Set(kD, 1.42860677e-6f), r);
  auto e = hn::Set(kD, 0.00138145976f);
  e = hn::MulAdd(e, r, hn::Set(kD, 0.00836871751f));
  e = hn::MulAdd(e, r, hn::Set(kD, 0.041668389f));
  e = hn::MulAdd(e, r, hn::Set(kD, 0.166665211f));
  e = hn::MulAdd(e, r, hn::Set(kD, 0.49999994f));
  e = hn::Add(hn::MulAdd(hn::Mul(r, r), e, r), hn::Set(kD, 1.0f));
  const hn::RebindToSigned<D> di;
  const auto power = hn::ShiftLeft<23>(hn::Add(hn::ConvertTo(di, n), hn::Set(di, 127)));
  const auto tiny = hn::Lt(x, hn::Set(kD, -87.3f));
  return hn::IfThenZeroElse(tiny, hn::Mul(e, hn::BitCast(kD, power)));
}

// Sums of four vectors, as four floats at out.
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

// s[r][j] = q[r] . k[j] for R rows and keys [0, n), 4 G keys at a time; k holds valid pointers up to the next multiple.
template <int R, int G, class T>
HWY_INLINE void Dots(const float* HWY_RESTRICT q, int64_t q_stride, const T* const* k, int64_t n, int64_t d,
                     float* HWY_RESTRICT s) {
  for (int64_t j = 0; j < n; j += 4 * G) {
    V acc[R][4 * G], lo, hi;
    LZ_UNROLL for (int r = 0; r < R; ++r) { LZ_UNROLL for (int c = 0; c < 4 * G; ++c) acc[r][c] = hn::Zero(kD); }
    int64_t i = 0;
    for (; i + kPair <= d; i += kPair) {
      LZ_UNROLL for (int c = 0; c < 4 * G; ++c) {
        LoadPair(k[j + c] + i, lo, hi);
        LZ_UNROLL for (int r = 0; r < R; ++r) {
          acc[r][c] = hn::MulAdd(lo, hn::Load(kD, q + r * q_stride + i), acc[r][c]);
          acc[r][c] = hn::MulAdd(hi, hn::Load(kD, q + r * q_stride + i + kL), acc[r][c]);
        }
      }
    }
    if (i < d) {
      LZ_UNROLL for (int c = 0; c < 4 * G; ++c) {
        LoadPairN(k[j + c] + i, d - i, lo, hi);
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

// o[r][col ..] = alpha[r] o[r][col ..] + sum over j < n of p[r][j] v[j][col ..], C pairs wide; tail: C == 1 and only
// `tail` elements of the pair exist. U keys run in separate accumulators to hide latency.
template <int R, int C, int U, bool kTail, class T>
HWY_INLINE void WeightedStrip(const float* HWY_RESTRICT p, const T* const* v, int64_t n, int64_t col, int64_t tail,
                              float* HWY_RESTRICT o, int64_t o_stride, const float* alpha) {
  V acc[U][R][2 * C], lo, hi;
  LZ_UNROLL for (int r = 0; r < R; ++r) {
    const auto a = hn::Set(kD, alpha[r]);
    LZ_UNROLL for (int c = 0; c < 2 * C; ++c) {
      acc[0][r][c] = hn::Mul(a, hn::Load(kD, o + r * o_stride + col + c * kL));
      LZ_UNROLL for (int u = 1; u < U; ++u) acc[u][r][c] = hn::Zero(kD);
    }
  }
  int64_t j = 0;
  const auto step = [&](int u, int64_t key) HWY_ATTR {
    LZ_UNROLL for (int c = 0; c < C; ++c) {
      if constexpr (kTail) {
        LoadPairN(v[key] + col, tail, lo, hi);
      } else {
        LoadPair(v[key] + col + c * kPair, lo, hi);
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

template <int R, class T>
HWY_INLINE void Weighted(const float* p, const T* const* v, int64_t n, int64_t d, float* o, int64_t o_stride,
                         const float* alpha) {
  constexpr int kU = R == 1 ? 2 : 1;
  constexpr int kC = R == 1 ? 2 : (R == 2 || kL >= 16 ? 2 : 1);
  int64_t col = 0;
  for (; col + kC * kPair <= d; col += kC * kPair) {
    WeightedStrip<R, kC, kU, false>(p, v, n, col, 0, o, o_stride, alpha);
  }
  for (; col + kPair <= d; col += kPair) WeightedStrip<R, 1, 2, false>(p, v, n, col, 0, o, o_stride, alpha);
  if (col < d) WeightedStrip<R, 1, 1, true>(p, v, n, col, d - col, o, o_stride, alpha);
}

// c[r][0 .. 2 or more vectors) = init ? alpha[r] c : 0, + sum over i < k of a[r][i] b[i][..], for 4 rows.
template <int N, bool kInit>
HWY_INLINE void Gemm4(const float* HWY_RESTRICT a, int64_t a_stride, const float* HWY_RESTRICT b, int64_t b_stride,
                      int64_t k, float* HWY_RESTRICT c, int64_t c_stride, const float* alpha) {
  V acc[4][N];
  LZ_UNROLL for (int r = 0; r < 4; ++r) {
    LZ_UNROLL for (int n = 0; n < N; ++n) {
      acc[r][n] = kInit ? hn::Mul(hn::Set(kD, alpha[r]), hn::Load(kD, c + r * c_stride + n * kL)) : hn::Zero(kD);
    }
  }
  for (int64_t i = 0; i < k; ++i) {
    V row[N];
    LZ_UNROLL for (int n = 0; n < N; ++n) row[n] = hn::Load(kD, b + i * b_stride + n * kL);
    LZ_UNROLL for (int r = 0; r < 4; ++r) {
      const auto w = hn::Set(kD, a[r * a_stride + i]);
      LZ_UNROLL for (int n = 0; n < N; ++n) acc[r][n] = hn::MulAdd(w, row[n], acc[r][n]);
    }
  }
  LZ_UNROLL for (int r = 0; r < 4; ++r) {
    LZ_UNROLL for (int n = 0; n < N; ++n) hn::Store(acc[r][n], kD, c + r * c_stride + n * kL);
  }
}
template <bool kInit>
HWY_INLINE void Gemm(int64_t rows, int64_t columns, const float* a, int64_t a_stride, const float* b, int64_t b_stride,
                     int64_t k, float* c, int64_t c_stride, const float* alpha) {
  constexpr int kN = kL >= 16 ? 4 : 2;
  int64_t col = 0;
  for (; col + kN * kL <= columns; col += kN * kL) {  // the strip of b stays in the first-level cache for all rows
    for (int64_t r = 0; r < rows; r += 4) {
      Gemm4<kN, kInit>(a + r * a_stride, a_stride, b + col, b_stride, k, c + r * c_stride + col, c_stride, alpha + r);
    }
  }
  for (; col < columns; col += kPair) {
    for (int64_t r = 0; r < rows; r += 4) {
      Gemm4<2, kInit>(a + r * a_stride, a_stride, b + col, b_stride, k, c + r * c_stride + col, c_stride, alpha + r);
    }
  }
}

// Transposes keys [0, n) into out[d in pair order][kBlock]; columns up to the next multiple of 4 repeat the last key.
HWY_INLINE void Transpose4(V a, V b, V c, V e, float* out) {
  const hn::Repartition<double, D> d64;
  const auto ab0 = hn::BitCast(d64, hn::InterleaveLower(kD, a, b)),
             ab1 = hn::BitCast(d64, hn::InterleaveUpper(kD, a, b));
  const auto ce0 = hn::BitCast(d64, hn::InterleaveLower(kD, c, e)),
             ce1 = hn::BitCast(d64, hn::InterleaveUpper(kD, c, e));
  HWY_ALIGN float rows[4][kL];
  hn::Store(hn::BitCast(kD, hn::InterleaveLower(d64, ab0, ce0)), kD, rows[0]);
  hn::Store(hn::BitCast(kD, hn::InterleaveUpper(d64, ab0, ce0)), kD, rows[1]);
  hn::Store(hn::BitCast(kD, hn::InterleaveLower(d64, ab1, ce1)), kD, rows[2]);
  hn::Store(hn::BitCast(kD, hn::InterleaveUpper(d64, ab1, ce1)), kD, rows[3]);
  const hn::FixedTag<float, 4> d4;
  for (int block = 0; block < kL / 4; ++block) {
    LZ_UNROLL for (int i = 0; i < 4; ++i) {
      hn::Store(hn::Load(d4, rows[i] + 4 * block), d4, out + (4 * block + i) * kBlock);
    }
  }
}
template <class T>
void PackKeys(const T* const* k, int64_t n, int64_t d, float* out) {
  for (int64_t j = 0; j < n; j += 4) {
    for (int64_t i = 0; i < d; i += kPair) {
      V lo[4], hi[4];
      LZ_UNROLL for (int c = 0; c < 4; ++c) {
        if (i + kPair <= d) {
          LoadPair(k[j + c] + i, lo[c], hi[c]);
        } else {
          LoadPairN(k[j + c] + i, d - i, lo[c], hi[c]);
        }
      }
      Transpose4(lo[0], lo[1], lo[2], lo[3], out + i * kBlock + j);
      Transpose4(hi[0], hi[1], hi[2], hi[3], out + (i + kL) * kBlock + j);
    }
  }
}
// Values [0, n) as f32 rows of `stride` in pair order.
template <class T>
void PackValues(const T* const* v, int64_t n, int64_t d, float* out, int64_t stride) {
  for (int64_t j = 0; j < n; ++j) {
    V lo, hi;
    int64_t i = 0;
    for (; i + kPair <= d; i += kPair) {
      LoadPair(v[j] + i, lo, hi);
      StorePair(lo, hi, out + j * stride + i);
    }
    if (i < d) {
      LoadPairN(v[j] + i, d - i, lo, hi);
      StorePair(lo, hi, out + j * stride + i);
    }
  }
}

}  // namespace attn
}  // namespace HWY_NAMESPACE
}  // namespace lz
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
