// Sums over the lanes of several vectors at once, for the kernels with AVX-512 whose vectors are along k.
#pragma once

#include "kernels/x86_intrinsics.h"

namespace lz::gemm {

// Lane 4 b + c = the sum of block b of 128 bits of v[c].
LZ_AVX512BF16_INLINE __m512 BlocksOfFour(const __m512* v) {
  const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(v[0], v[1]), _mm512_unpackhi_ps(v[0], v[1]));
  const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(v[2], v[3]), _mm512_unpackhi_ps(v[2], v[3]));
  const __m512d low = _mm512_unpacklo_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd));
  const __m512d high = _mm512_unpackhi_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd));
  return _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high));
}

// Lane c = the sum of all lanes of v[c]; the order is the same for four vectors and for 16.
LZ_AVX512BF16_INLINE __m128 SumOfFour(const __m512* v) {
  const __m512 blocks = BlocksOfFour(v);
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(blocks), _mm512_extractf32x8_ps(blocks, 1));
  return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}
LZ_AVX512BF16_INLINE __m512 SumOf16(const __m512* v) {
  const __m512 a = BlocksOfFour(v), b = BlocksOfFour(v + 4), c = BlocksOfFour(v + 8), d = BlocksOfFour(v + 12);
  const __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
  const __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
  return _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
}

}  // namespace lz::gemm
