// Checks vectors of sums that may have exceeded the range of FP32, for AVX512-BF16's kernels with quantized weights.
#pragma once

#include <cstdint>

#include "kernels/x86_intrinsics.h"

namespace lz::gemm {

// Returns v, but exact(lane, v's number) in the lanes of `mask` whose number is not 0 and outside 2^-100 to 2^100,
// where a product or a partial sum may have exceeded the range of FP32.
template <class Exact>
LZ_AVX512BF16_INLINE __m512 WithExactSums(__m512 v, __mmask16 mask, const Exact& exact) {
  const __m512i bits = _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(0x7fffffff));
  const __m512i low = _mm512_set1_epi32((127 - 100) << 23), width = _mm512_set1_epi32(200 << 23);
  const __mmask16 in_range =
      _mm512_cmplt_epu32_mask(_mm512_sub_epi32(bits, low), width) | _mm512_testn_epi32_mask(bits, bits);
  const __mmask16 rest = mask & ~in_range;
  if (rest == 0) return v;
  alignas(64) float values[16];
  _mm512_store_ps(values, v);
  for (int64_t lane = 0; lane < 16; ++lane)
    if (rest >> lane & 1) values[lane] = float(exact(lane, values[lane]));
  return _mm512_load_ps(values);
}

}  // namespace lz::gemm
