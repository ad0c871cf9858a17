// Products of attention for many query rows: blocks of keys are transposed, values widened, then multiplied as
// matrices. Include only from files that Highway compiles per target (after kernels/simd.h).
#if defined(LZ_KERNELS_ATTENTION_PACKED_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LZ_KERNELS_ATTENTION_PACKED_H_
#undef LZ_KERNELS_ATTENTION_PACKED_H_
#else
#define LZ_KERNELS_ATTENTION_PACKED_H_
#endif

#include "kernels/attention/pairs.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE::attn {

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
  for (; col + kN * kL <= columns; col += kN * kL) {  // the strip of b stays in L1 for all rows
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

// Transposes keys [0, n) into out[d in pair order][kPackedBlock]; columns up to the next multiple of 4 are copies
// of the last key.
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
      hn::Store(hn::Load(d4, rows[i] + 4 * block), d4, out + (4 * block + i) * kPackedBlock);
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
      Transpose4(lo[0], lo[1], lo[2], lo[3], out + i * kPackedBlock + j);
      Transpose4(hi[0], hi[1], hi[2], hi[3], out + (i + kL) * kPackedBlock + j);
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

}  // namespace lz::HWY_NAMESPACE::attn
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
