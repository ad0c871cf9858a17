// Products of packed GGUF weights with activations in int8, but for the multiplication: rows rounded to int8, weights
// decoded to bytes, sums stored. For files of x86-64 only; callable on a CPU with AVX-512.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "core/view.h"
#include "kernels/gemm/gguf/spec.h"
#include "kernels/gemm/gguf/x86_scales.h"
#include "kernels/launch.h"
#include "kernels/x86_intrinsics.h"
#include "ops/mlp/linear/gguf.h"

namespace lz::gguf {
using namespace lz::ops::mlp_linear_gguf;

struct F16 {
  uint16_t bits;
};
struct BF16 {
  uint16_t bits;
};
template <class Body>
int32_t WithFloatType(DType type, const Body& body) {
  if (type == DType::kF32) return body(float{});
  return type == DType::kF16 ? body(F16{}) : body(BF16{});
}
LZ_AVX512_INLINE __m512 LoadFloats(const float* p, __mmask16 mask = 0xffff) { return _mm512_maskz_loadu_ps(mask, p); }
LZ_AVX512_INLINE __m512 LoadFloats(const F16* p, __mmask16 mask = 0xffff) {
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, p));
}
LZ_AVX512_INLINE __m512 LoadFloats(const BF16* p, __mmask16 mask = 0xffff) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, p)), 16));
}
LZ_AVX512_INLINE void StoreFloats(__m512 v, __mmask16 mask, float* p) { _mm512_mask_storeu_ps(p, mask, v); }
LZ_AVX512_INLINE void StoreFloats(__m512 v, __mmask16 mask, F16* p) {
  _mm256_mask_storeu_epi16(p, mask, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
LZ_AVX512_INLINE void StoreFloats(__m512 v, __mmask16 mask, BF16* p) {
  const __m512i bits = _mm512_castps_si512(v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
  const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  const __m512i upper = _mm512_mask_mov_epi32(_mm512_srli_epi32(rounded, 16), nan, _mm512_set1_epi32(0x7fc0));
  _mm256_mask_storeu_epi16(p, mask, _mm512_cvtepi32_epi16(upper));
}

// ---- rows

// d and the sums of the first and the last 16 int8 values, for a block of 32 values of four rows.
struct FourScales {
  __m128 d;
  __m128i low, high;
};

// The largest integer of each of four vectors.
LZ_AVX512_INLINE __m128i LargestOfEach(const __m512i* v) {
  const __m512i a = _mm512_max_epi32(_mm512_unpacklo_epi32(v[0], v[1]), _mm512_unpackhi_epi32(v[0], v[1]));
  const __m512i b = _mm512_max_epi32(_mm512_unpacklo_epi32(v[2], v[3]), _mm512_unpackhi_epi32(v[2], v[3]));
  const __m512i four = _mm512_max_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
  const __m256i two = _mm256_max_epi32(_mm512_castsi512_si256(four), _mm512_extracti64x4_epi64(four, 1));
  return _mm_max_epi32(_mm256_castsi256_si128(two), _mm256_extracti128_si256(two, 1));
}

// 32 values of each of four rows, from x[r] + at on, rounded as in the contract.
template <class T>
LZ_AVX512_INLINE FourScales RoundFour(const T* const* x, int64_t at, int8_t (*values)[kActivationBlock]) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  __m512 v[4][2];
  __m512i largest[4];
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) {
    v[r][0] = LoadFloats(x[r] + at), v[r][1] = LoadFloats(x[r] + at + 16);
    largest[r] = _mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(v[r][0]), magnitude),
                                  _mm512_and_si512(_mm512_castps_si512(v[r][1]), magnitude));
  }
  const __m128i amax_bits = LargestOfEach(largest);  // as integers, NaN and infinity are the largest
  const __m128 amax = _mm_castsi128_ps(amax_bits), most = _mm_set1_ps(127.0f);
  const __mmask8 finite = _mm_cmplt_epi32_mask(amax_bits, _mm_set1_epi32(0x7f800000));
  const __mmask8 large = _mm_cmp_ps_mask(amax, _mm_set1_ps(kLeastActivation), _CMP_GE_OQ);
  const __m512 inverse = _mm512_castps128_ps512(_mm_maskz_div_ps(__mmask8(finite & large), most, amax));

  // From the vectors of two rows, which are packed lane by lane, to fours of k in order.
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  __m512i sums[2];  // sums of fours: [row][8]
#pragma GCC unroll 2
  for (int pair = 0; pair < 2; ++pair) {
    __m512i words[2];
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      const __m512 *row = v[2 * pair + i], by = _mm512_permutexvar_ps(_mm512_set1_epi32(2 * pair + i), inverse);
      words[i] = _mm512_packs_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(row[0], by)),
                                    _mm512_cvtps_epi32(_mm512_mul_ps(row[1], by)));
    }
    const __m512i bytes = _mm512_permutexvar_epi32(order, _mm512_packs_epi16(words[0], words[1]));
    _mm512_storeu_si512(values[2 * pair], bytes);
    sums[pair] = _mm512_madd_epi16(_mm512_maddubs_epi16(_mm512_set1_epi8(1), bytes), _mm512_set1_epi16(1));
  }
  const __m512i twos =
      _mm512_add_epi32(_mm512_unpacklo_epi32(sums[0], sums[1]), _mm512_unpackhi_epi32(sums[0], sums[1]));
  const __m512i of_lanes = _mm512_add_epi32(twos, _mm512_shuffle_epi32(twos, _MM_PERM_BADC));
  const __m512i by_row = _mm512_setr_epi32(0, 8, 1, 9, 4, 12, 5, 13, 0, 0, 0, 0, 0, 0, 0, 0);
  const __m256i both = _mm512_castsi512_si256(_mm512_permutexvar_epi32(by_row, of_lanes));
  return {.d = _mm_mask_div_ps(_mm_set1_ps(std::numeric_limits<float>::quiet_NaN()), finite, amax, most),
          .low = _mm256_castsi256_si128(both),
          .high = _mm256_extracti128_si256(both, 1)};
}

// ---- weights

// The weights of kGroups times 16 columns for up to kBlocks blocks of 32, as bytes in fours of k; a value is (w -
// zero) * d (q6_k: each d for 16 of k) + m. If signed, zero is subtracted already.
template <int64_t kBlocks, int kGroups>
struct Panel {
  alignas(64) uint8_t weights[kBlocks][8][kGroups][64];
  alignas(64) float d[kBlocks][2][kGroups][kGroupRows];
  alignas(64) float m[kBlocks][kGroups][kGroupRows];
};
template <int F>
inline constexpr bool kHasOffset = F == kQ4_1 || F == kQ4_K;
template <int F>
inline constexpr int kZero = F == kQ4_0   ? 8
                             : F == kQ6_K ? 32
                             : F == kQ8_0 ? 128
                                          : 0;

// stride: bytes between fours of k.
template <int F, bool kSigned>
LZ_AVX512_INLINE void DecodeWeights(const uint8_t* p, uint8_t* weights, int64_t stride) {
  const __m512i zero = _mm512_set1_epi8(kSigned ? char(kZero<F>) : 0);
  if constexpr (F == kQ8_0) {
    for (int c = 0; c < 8; ++c)
      _mm512_store_si512(weights + c * stride, _mm512_sub_epi8(_mm512_loadu_si512(p + 64 * c), zero));
    return;
  }
  const __m512i low = _mm512_set1_epi8(15);
  for (int c = 0; c < 4; ++c) {
    const __m512i bytes = _mm512_loadu_si512(p + 64 * c);
    __m512i parts[2] = {_mm512_and_si512(bytes, low), _mm512_and_si512(_mm512_srli_epi16(bytes, 4), low)};
    for (int h = 0; h < 2; ++h) {
      if constexpr (F == kQ6_K) {
        const __m512i two = _mm512_srl_epi16(_mm512_loadu_si512(p + 256 + 64 * h), _mm_cvtsi32_si128(2 * c));
        parts[h] = _mm512_or_si512(parts[h], _mm512_slli_epi16(_mm512_and_si512(two, _mm512_set1_epi8(3)), 4));
      }
      _mm512_store_si512(weights + (c + 4 * h) * stride, _mm512_sub_epi8(parts[h], zero));
    }
  }
}

// Blocks [first, first + blocks) of a packed group become the panel's group g.
template <int F, bool kSigned, int64_t kBlocks, int kGroups>
LZ_AVX512 void Decode(const uint8_t* group, int64_t k, int64_t first, int64_t blocks, int g,
                      Panel<kBlocks, kGroups>* panel) {
  const uint8_t* scales = group + ScalesBegin(F, k);
  for (int64_t i = 0; i < blocks; ++i) {
    const int64_t block = first + i;
    float *d = panel->d[i][0][g], *second = panel->d[i][1][g], *m = panel->m[i][g];
    DecodeWeights<F, kSigned>(group + block * kPackedCodes[F], panel->weights[i][0][g], 64 * kGroups);
    if constexpr (F == kQ4_0 || F == kQ8_0) {
      _mm512_store_ps(d, Halves(scales + block * 32));
    } else if constexpr (F == kQ4_1) {
      _mm512_store_ps(d, Halves(scales + block * 64));
      _mm512_store_ps(m, Halves(scales + block * 64 + 32));
    } else if constexpr (F == kQ4_K) {
      const uint8_t *of256 = scales + block / 8 * 320, *own = of256 + 64 + block % 8 * 32;
      _mm512_store_ps(d, _mm512_mul_ps(Halves(of256), Bytes(own)));
      const __m512 minimum = _mm512_mul_ps(Halves(of256 + 32), Bytes(own + 16));
      _mm512_store_ps(m, _mm512_sub_ps(_mm512_setzero_ps(), minimum));
    } else {
      const uint8_t *of256 = scales + block / 8 * 288, *own = of256 + 32 + block % 8 * 32;
      _mm512_store_ps(d, _mm512_mul_ps(Halves(of256), SignedBytes(own)));
      _mm512_store_ps(second, _mm512_mul_ps(Halves(of256), SignedBytes(own + 16)));
    }
  }
}

// ---- sums

// The destination of a call's sums.
template <class T>
class OutputColumns {
 public:
  explicit OutputColumns(const lz_kernel_args* args)
      : tensor_(args->tensors[kOutput]), bias_(args->tensors[kBias]), offsets_(tensor_), rows_(NumRows(tensor_)) {}

  // Rows [row, row + count) of kGroups groups from `group` on, as far as those rows and columns exist.
  template <int kGroups>
  LZ_AVX512_INLINE void Store(int64_t row, int64_t count, int64_t group,
                              const float (*sums)[kGroups][kGroupRows]) const {
    const int64_t column = group * kGroupRows;
    __mmask16 masks[kGroups];
    __m512 add[kGroups];
#pragma GCC unroll 4
    for (int g = 0; g < kGroups; ++g) {
      const int64_t left = tensor_.shape[tensor_.ndim - 1] - column - g * kGroupRows;
      masks[g] = left >= kGroupRows ? __mmask16(0xffff) : left <= 0 ? __mmask16(0) : __mmask16((1u << left) - 1);
      add[g] =
          Given(bias_) ? LoadFloats(Data<const T>(bias_) + column + g * kGroupRows, masks[g]) : _mm512_setzero_ps();
    }
    for (int64_t r = 0; r < std::min(count, rows_ - row); ++r) {
      T* to = Data<T>(tensor_) + offsets_[row + r] + column;
#pragma GCC unroll 4
      for (int g = 0; g < kGroups; ++g)
        StoreFloats(_mm512_add_ps(_mm512_load_ps(sums[r][g]), add[g]), masks[g], to + g * kGroupRows);
    }
  }

 private:
  const lz_tensor &tensor_, &bias_;
  RowOffsets offsets_;
  int64_t rows_;
};

}  // namespace lz::gguf
