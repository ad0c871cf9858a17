// GGUF's blocks on the device: the parts of a value, and the blocks as weights of products of few rows.
#pragma once

#include "kernels/gemm/few_rows_cuda.h"
#include "ops/common/gguf.h"

namespace lz::gguf_cuda {
using namespace lz::ops::gguf;

// Of the formats of this file, as kernels need them.
template <int kFormat>
struct Facts {
  static constexpr bool kWide = kFormat >= kQ4_K;  // 256 values in a block, not 32
  static constexpr bool kMinima = kFormat == kQ4_1 || kFormat == kQ5_1 || kFormat == kQ4_K || kFormat == kQ5_K;
  static constexpr bool kFive = kFormat == kQ5_0 || kFormat == kQ5_1 || kFormat == kQ5_K;
  static constexpr int kValues = kWide ? 256 : 32;
  static constexpr int kBytes = kBlockBytes[kFormat];
  static constexpr int kBits = kMinima ? 4 : 2;  // blocks of 32: where high bits begin
  static constexpr int kCodes = kWide ? (kFormat == kQ6_K ? 0 : kFive ? 48 : 16) : kFive ? kBits + 4 : kBits;
  static constexpr int kBias = kFormat == kQ4_0 ? 8 : kFormat == kQ5_0 ? 16 : kFormat == kQ6_K ? 32 : 0;
};

#ifdef __CUDACC__
// A value is scale * code + offset; scale and offset are exact in FP32. They serve 16 values: half `half` of unit
// `unit` of a block; `unit` is 0 for blocks of 32.
template <int kFormat>
__device__ void BlockFactors(const uint8_t* block, int unit, int half, float* scale, float* offset) {
  using F = Facts<kFormat>;
  *offset = 0;
  if constexpr (kFormat == kQ6_K) {
    *scale = few_rows::HalfFloat(block + 208) * float(int8_t(block[192 + 2 * unit + half]));
  } else if constexpr (F::kWide) {
    const int s = unit < 4 ? block[4 + unit] & 63 : (block[8 + unit] & 15) | block[unit] >> 6 << 4;
    const int t = unit < 4 ? block[8 + unit] & 63 : block[8 + unit] >> 4 | block[4 + unit] >> 6 << 4;
    *scale = few_rows::HalfFloat(block) * float(s);
    *offset = -(few_rows::HalfFloat(block + 2) * float(t));
  } else {
    *scale = few_rows::HalfFloat(block);
    if constexpr (F::kMinima) *offset = few_rows::HalfFloat(block + 2);
  }
}

// The code of value i of a block, with its bias taken off.
template <int kFormat>
__device__ int CodeAt(const uint8_t* block, int i) {
  using F = Facts<kFormat>;
  if constexpr (kFormat == kQ8_0) {
    return int8_t(block[F::kCodes + i]);
  } else if constexpr (kFormat == kQ6_K) {
    const int half = i / 128, c = i % 128 / 32, j = i % 32;
    const int low = block[half * 64 + c % 2 * 32 + j] >> (c >= 2 ? 4 : 0) & 15;
    return (low | (block[128 + half * 32 + j] >> 2 * c & 3) << 4) - F::kBias;
  } else if constexpr (F::kWide) {
    const int low = block[F::kCodes + i / 64 * 32 + i % 32] >> (i % 64 >= 32 ? 4 : 0) & 15;
    return F::kFive ? low | (block[16 + i % 32] >> i / 32 & 1) << 4 : low;
  } else {
    const int low = block[F::kCodes + i % 16] >> (i >= 16 ? 4 : 0) & 15;
    return (F::kFive ? low | (block[F::kBits + i / 8] >> i % 8 & 1) << 4 : low) - F::kBias;
  }
}

// A Format of few_rows_cuda.h.
template <int kFormat>
struct Blocks {
  struct Params {};
  using F = Facts<kFormat>;
  static constexpr int kStageValues = 256, kStageBytes = kStageValues / F::kValues * F::kBytes;
  static constexpr bool kScaled = true, kOffsets = F::kMinima, kHalfUnits = kFormat == kQ6_K;
  static constexpr few_rows::Order kOrder = few_rows::Order::kQuads;
  // Factors of blocks of 256 are made once for all lanes: 8 times scale and offset, or 16 times scale, and one more
  // for other banks.
  static constexpr bool kPrepared = F::kWide, kOften = true;
  static constexpr int kFactorsStride = kHalfUnits ? 17 : 18, kExtraBytes = 0;
  static constexpr int kFactorsBytes = kPrepared ? few_rows::kColumns * kFactorsStride * int(sizeof(float)) : 0;
  int lane;

  __device__ Blocks(const Params&, int, int, int lane_) : lane(lane_) {}
  __device__ void Issue(int, uint8_t*) const {}
  __device__ void Begin(int) const {}
  template <int kEvery>
  __device__ void Prepare(const uint8_t* codes, const uint8_t*, float* factors) const {
    // Two lanes make the factors of a row.
    const uint8_t* block = codes + lane / 2 * few_rows::StageOf<Blocks>::kRowBytes;
    float* row = factors + lane / 2 * kFactorsStride;
#pragma unroll
    for (int i = 0; i < (kHalfUnits ? 8 : 4); ++i) {
      const int at = 2 * i + lane % 2;  // of the row's factors
      float scale, offset;
      if constexpr (kHalfUnits) {
        BlockFactors<kFormat>(block, at / 2, at % 2, &scale, &offset);
        row[at] = scale;
      } else {
        BlockFactors<kFormat>(block, at, 0, &scale, &offset);
        row[2 * at] = scale, row[2 * at + 1] = offset;
      }
    }
  }
  __device__ static float Final(const Params&, int) { return 1.0f; }

  template <class T>
  __device__ void Row(const uint8_t* codes, int unit, int t, uint32_t (&pairs)[4]) const {
    uint32_t w[4];
    Words(F::kWide ? codes : codes + unit * F::kBytes, unit, t, w);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (kFormat == kQ8_0) {
        pairs[i] = few_rows::ByteIntegers<T>(w[i] ^ 0x80808080u, i % 2, 128);
      } else {
        pairs[i] = few_rows::SmallIntegers<T>(w[i], 0, F::kBias);
      }
    }
  }
  // Codes of values 0 and 2, 1 and 3 of both quads, in the halves of words; of q8_0 the quads as they are.
  __device__ void Words(const uint8_t* block, int unit, int t, uint32_t (&w)[4]) const {
    using few_rows::EvenWord, few_rows::Word;
    constexpr uint32_t kMask = 0x000f000fu;
    if constexpr (kFormat == kQ8_0) {
      w[0] = w[1] = EvenWord(block + F::kCodes + 4 * t), w[2] = w[3] = EvenWord(block + F::kCodes + 16 + 4 * t);
    } else if constexpr (!F::kWide) {
      const uint32_t all = EvenWord(block + F::kCodes + 4 * t);
      w[0] = all & kMask, w[1] = all >> 8 & kMask, w[2] = all >> 4 & kMask, w[3] = all >> 12 & kMask;
      if constexpr (F::kFive) {
        const uint32_t bits = EvenWord(block + F::kBits) >> 4 * t;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const uint32_t mine = bits >> (i / 2 * 16 + i % 2);
          w[i] |= (mine & 1) << 4 | (mine & 4) << 18;
        }
      }
    } else if constexpr (kFormat == kQ6_K) {
      const int c = unit % 4;
      const uint8_t *low = block + unit / 4 * 64 + c % 2 * 32 + 4 * t, *high = block + 128 + unit / 4 * 32 + 4 * t;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t l = EvenWord(low + 16 * half) >> (c >= 2 ? 4 : 0), h = EvenWord(high + 16 * half) >> 2 * c;
        w[2 * half] = (l & kMask) | (h & 0x00030003u) << 4;
        w[2 * half + 1] = (l >> 8 & kMask) | (h >> 8 & 0x00030003u) << 4;
      }
    } else {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t l = Word(block + F::kCodes + unit / 2 * 32 + 16 * half + 4 * t) >> unit % 2 * 4;
        w[2 * half] = l & kMask, w[2 * half + 1] = l >> 8 & kMask;
        if constexpr (F::kFive) {
          const uint32_t h = Word(block + 16 + 16 * half + 4 * t) >> unit;
          w[2 * half] |= (h & 0x00010001u) << 4, w[2 * half + 1] |= (h >> 8 & 0x00010001u) << 4;
        }
      }
    }
  }

  template <int kEvery>
  __device__ few_rows::Factors Scales(const uint8_t* low, const uint8_t* high, const float* factors, int unit,
                                      int half) const {
    few_rows::Factors f = {};
    if constexpr (kPrepared) {
      const float* row = factors + lane / 4 * kFactorsStride;
#pragma unroll
      for (int i = 0; i < 2; ++i, row += 8 * kFactorsStride) {
        f.scale[i] = row[2 * unit + (kHalfUnits ? half : 0)];
        if constexpr (kOffsets) f.offset[i] = row[2 * unit + 1];
      }
    } else {
      BlockFactors<kFormat>(low + unit * F::kBytes, 0, half, &f.scale[0], &f.offset[0]);
      BlockFactors<kFormat>(high + unit * F::kBytes, 0, half, &f.scale[1], &f.offset[1]);
    }
    return f;
  }
  __device__ static double At(const Params&, const uint8_t* row, int, int i) {
    const uint8_t* block = row + i / F::kValues * F::kBytes;
    float scale, offset;
    BlockFactors<kFormat>(block, i % F::kValues / 32, i % 32 / 16, &scale, &offset);
    return double(scale) * CodeAt<kFormat>(block, i % F::kValues) + double(offset);
  }
};
#endif  // __CUDACC__

// body(std::integral_constant<int, format>)
template <class Body>
int32_t WithFormat(int64_t format, Body&& body) {
  switch (format) {
    case kQ4_0: return body(std::integral_constant<int, kQ4_0>());
    case kQ4_1: return body(std::integral_constant<int, kQ4_1>());
    case kQ5_0: return body(std::integral_constant<int, kQ5_0>());
    case kQ5_1: return body(std::integral_constant<int, kQ5_1>());
    case kQ8_0: return body(std::integral_constant<int, kQ8_0>());
    case kQ4_K: return body(std::integral_constant<int, kQ4_K>());
    case kQ5_K: return body(std::integral_constant<int, kQ5_K>());
    default: return body(std::integral_constant<int, kQ6_K>());
  }
}

}  // namespace lz::gguf_cuda
