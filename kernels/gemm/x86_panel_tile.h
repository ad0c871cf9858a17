// Panels of bf16 in pairs of k times tiles of rows, with AVX512-BF16's dot products; and the packing of row-major or
// column-major weights into panels: [pairs][64 columns], zeros past k and past the columns up to a vector's end. For
// files of x86-64 only; callable on a CPU with AVX512-BF16.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/gemm/panel_blocking.h"
#include "kernels/gemm/x86_pack.h"
#include "kernels/launch.h"

namespace lz::panels::bf16 {

inline constexpr int kVectors = int(kPanel / x86::kMicroPanel);

// A pair of k times a row of a panel.
template <int R, int V>
LZ_AVX512BF16_INLINE void Step(const int32_t* x, const uint16_t* w, __m512 (*acc)[V]) {
  __m512bh ws[V];
#pragma GCC unroll 8
  for (int v = 0; v < V; ++v) ws[v] = (__m512bh)_mm512_loadu_si512(w + v * 32);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const __m512bh xs = (__m512bh)_mm512_set1_epi32(x[r]);
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) acc[r][v] = _mm512_dpbf16_ps(acc[r][v], xs, ws[v]);
  }
}

// sums[r][V vectors] (+)= the products of R rows with `size` values of k.
template <int R, int V>
LZ_AVX512BF16 __attribute__((noinline)) void AddTile(const uint16_t* const* x, const uint16_t* w, int64_t size,
                                                     bool more, Sums* sums) {
  const uint16_t* xs[R];
  for (int r = 0; r < R; ++r) xs[r] = x[r];
  __m512 acc[R][V];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) acc[r][v] = more ? _mm512_loadu_ps(sums[r] + v * 16) : _mm512_setzero_ps();
  int64_t i = 0;
  for (; i + 2 <= size; i += 2) {
    int32_t pairs[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) std::memcpy(&pairs[r], xs[r] + i, 4);
    Step<R, V>(pairs, w + i * kPanel, acc);
  }
  if (i < size) {
    int32_t pairs[R];
    for (int r = 0; r < R; ++r) pairs[r] = xs[r][i];
    Step<R, V>(pairs, w + i * kPanel, acc);
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) _mm512_storeu_ps(sums[r] + v * 16, acc[r][v]);
}

inline void AddPanel(const uint16_t* const* x, int64_t tile, const uint16_t* w, int64_t columns, int64_t size,
                     bool more, Sums* sums) {
  WithCount<kTileRows>(tile, [&](auto rows) {
    WithCount<kVectors>((columns + 15) / 16, [&](auto v) { AddTile<rows(), v()>(x, w, size, more, sums); });
  });
}

// Packs row-major weights.
inline void PackRows(const uint16_t* w, int64_t stride, int64_t columns, int64_t size, uint16_t* out) {
  for (int64_t c = 0; c < columns; c += x86::kMicroPanel) {
    const uint16_t* rows[x86::kMicroPanel];
    const int64_t count = std::min(x86::kMicroPanel, columns - c);
    for (int64_t r = 0; r < count; ++r) rows[r] = w + (c + r) * stride;
    x86::PackMicroPanel(rows, count, size, reinterpret_cast<uint32_t*>(out) + c, kPanel, x86::kMicroPanel * stride);
  }
}

// Packs column-major weights.
LZ_AVX512BF16 inline void PackColumns(const uint16_t* w, int64_t stride, int64_t columns, int64_t size, uint16_t* out) {
  constexpr int64_t kPrefetchRows = 16;  // prefetch distance in rows of weights: they are too far apart for
                                         // hardware prefetchers
  const __m512i low = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37,
                                       5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
  const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
  for (int64_t i = 0; i < size; i += 2) {
    for (int64_t c = 0; c < columns; c += 32) {
      const uint16_t* from = w + i * stride + c;
      const __mmask32 mask = columns - c >= 32 ? ~__mmask32{0} : (__mmask32{1} << (columns - c)) - 1;
      const __m512i even = _mm512_maskz_loadu_epi16(mask, from);
      const __m512i odd = _mm512_maskz_loadu_epi16(i + 1 < size ? mask : __mmask32{0}, from + stride);
      uint16_t* to = out + i * kPanel + 2 * c;
      _mm512_storeu_si512(to, _mm512_permutex2var_epi16(even, low, odd));
      _mm512_storeu_si512(to + 32, _mm512_permutex2var_epi16(even, high, odd));
      _mm_prefetch(reinterpret_cast<const char*>(from + kPrefetchRows * stride), _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char*>(from + (kPrefetchRows + 1) * stride), _MM_HINT_T0);
    }
  }
}

// out = sums + bias; bias may be null.
LZ_AVX512BF16 inline void Store(const float* sums, const uint16_t* bias, int64_t columns, uint16_t* out) {
  for (int64_t c = 0; c < columns; c += 16) {
    const __mmask16 mask = columns - c >= 16 ? __mmask16(0xffff) : __mmask16((1u << (columns - c)) - 1);
    __m512 sum = _mm512_loadu_ps(sums + c);
    if (bias) {
      const __m512i b = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, bias + c));
      sum = _mm512_add_ps(sum, _mm512_castsi512_ps(_mm512_slli_epi32(b, 16)));
    }
    _mm256_mask_storeu_epi16(out + c, mask, (__m256i)_mm512_cvtneps_pbh(sum));
  }
}

struct Packed {
  static constexpr int64_t kBlockK = kPackedK<uint16_t>;
  uint16_t* Panel(int part, int64_t first, int64_t columns, int64_t from, int64_t size, uint16_t* buffer) const {
    const Weights<uint16_t>& w = weights[part];
    (w.column_major ? &PackColumns : &PackRows)(w.At(first, from), w.stride, columns, size, buffer);
    return buffer;
  }
  const Weights<uint16_t>* weights;
};

}  // namespace lz::panels::bf16
