// 16 columns' scales of packed GGUF weights as floats. For files of x86-64 only.
#pragma once

#include <cstdint>

#include "kernels/x86_intrinsics.h"

namespace lz::gguf {

LZ_AVX512_INLINE __m512 Halves(const uint8_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
LZ_AVX512_INLINE __m512 Bytes(const uint8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
LZ_AVX512_INLINE __m512 SignedBytes(const uint8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}

}  // namespace lz::gguf
