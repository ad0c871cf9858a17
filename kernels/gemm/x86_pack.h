// Rows of bf16 as right operands of products of pairs: pairs of k are adjacent, 16 rows per vector. For files of x86-64
// only; callable on a CPU with AVX-512.
#pragma once

#include <cstdint>

#include "kernels/x86_intrinsics.h"

namespace lz::x86 {

constexpr int64_t kMicroPanel = 16;  // rows per vector
constexpr int64_t kStepK = 32;       // micro-panels are padded with zeros to a multiple of it

// r[i] lane j <- r[j] lane i.
LZ_AVX512_INLINE void Transpose(__m512* r) {
  __m512 t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      const __m512d a = _mm512_castps_pd(t[i + j]), b = _mm512_castps_pd(t[i + j + 2]);
      r[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
      r[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
    }
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const __m512 a = _mm512_shuffle_f32x4(r[j], r[4 + j], 0x44), b = _mm512_shuffle_f32x4(r[j], r[4 + j], 0xee);
    const __m512 c = _mm512_shuffle_f32x4(r[8 + j], r[12 + j], 0x44);
    const __m512 d = _mm512_shuffle_f32x4(r[8 + j], r[12 + j], 0xee);
    t[j] = _mm512_shuffle_f32x4(a, c, 0x88);
    t[4 + j] = _mm512_shuffle_f32x4(a, c, 0xdd);
    t[8 + j] = _mm512_shuffle_f32x4(b, d, 0x88);
    t[12 + j] = _mm512_shuffle_f32x4(b, d, 0xdd);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) r[i] = t[i];
}

// Packs a micro-panel [ceil(k / 32) * 16 pairs][16 rows] of x[0 .. rows), elements of two bytes, with zeros for missing
// rows and past k. Pairs are `stride` apart. `prefetch`: prefetch distance in elements after x.
template <class T>
LZ_AVX512 void PackMicroPanel(const T* const* x, int64_t rows, int64_t k, uint32_t* out, int64_t stride = kMicroPanel,
                              int64_t prefetch = 0) {
  for (int64_t i = 0; i < k; i += kStepK) {
    const __mmask32 mask = k - i >= kStepK ? ~__mmask32{0} : (__mmask32{1} << (k - i)) - 1;
    __m512 v[16];
#pragma GCC unroll 16
    for (int r = 0; r < 16; ++r) {
      const T* from = x[r < rows ? r : 0] + i;
      v[r] = _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(r < rows ? mask : __mmask32{0}, from));
      _mm_prefetch(reinterpret_cast<const char*>(from + prefetch), _MM_HINT_T0);
    }
    Transpose(v);
#pragma GCC unroll 16
    for (int p = 0; p < 16; ++p) _mm512_store_ps(out + (i / 2 + p) * stride, v[p]);
  }
}

}  // namespace lz::x86
