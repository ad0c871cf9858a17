// Linear with packed GGUF weights and activations in int8 for many rows: blocks of codes are products of AMX's tiles.
//   input  [..., k]  f32|f16|bf16, last dim dense     packed [ceil(n / 16), bytes] u8, as linear_gguf_prepack has it
//   bias   [n]       dtype of input, optional          output [..., n], last dim dense
// Workspace: the input's codes in strips of 16 rows. Deterministic. Source: own. Codes of a block are made signed
// bytes, once for all rows; their products with a strip are exact integers [16 rows][16 columns], which are scaled in
// FP32.
#include "core/kernel.h"
#include "platform/device.h"

#if defined(__x86_64__)
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/view.h"
#include "kernels/launch.h"
#include "kernels/x86_intrinsics.h"
#include "kernels/x86_tiles.h"
#include "ops/mlp/linear/gguf.h"

namespace {
using namespace lz;
using namespace lz::ops::mlp_linear_gguf;
using x86::Tiles;

constexpr int64_t kStrip = 16;                // rows of a tile
constexpr int64_t kPanelBlocks = 64;          // of 32 values: 32 KiB of codes
constexpr int64_t kStripsBytes = 512 * 1024;  // of input in a second-level cache
constexpr int64_t kMaxStrips = 32;            // whose sums are kept over several panels

// 32 values of a strip. sum: of the row's values, d times its codes.
struct ActivationBlock {
  int8_t codes[kStrip][kActivationBlock];
  float d[kStrip], sum[kStrip];
};

struct F16 {
  uint16_t bits;
};
struct BF16 {
  uint16_t bits;
};
LZ_AVX512BF16_INLINE __m512 LoadFloats(const float* p) { return _mm512_loadu_ps(p); }
LZ_AVX512BF16_INLINE __m512 LoadFloats(const F16* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
LZ_AVX512BF16_INLINE __m512 LoadFloats(const BF16* p) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
LZ_AVX512BF16_INLINE void StoreFloats(__m512 v, __mmask16 mask, float* p) { _mm512_mask_storeu_ps(p, mask, v); }
LZ_AVX512BF16_INLINE void StoreFloats(__m512 v, __mmask16 mask, F16* p) {
  _mm256_mask_storeu_epi16(p, mask, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
LZ_AVX512BF16_INLINE void StoreFloats(__m512 v, __mmask16 mask, BF16* p) {
  _mm256_mask_storeu_epi16(p, mask, (__m256i)_mm512_cvtneps_pbh(v));
}

// Row r of a block: its definition is the contract's.
template <class T>
LZ_AVX512BF16_INLINE void RoundToInt8(const T* x, ActivationBlock* block, int64_t r) {
  const __m512 low = LoadFloats(x), high = LoadFloats(x + 16);
  const __m512 largest = _mm512_max_ps(_mm512_abs_ps(low), _mm512_abs_ps(high));
  constexpr int kNotFinite = 0x99;  // NaN or infinite
  const bool finite = (_mm512_fpclass_ps_mask(low, kNotFinite) | _mm512_fpclass_ps_mask(high, kNotFinite)) == 0;
  const float amax = finite ? _mm512_reduce_max_ps(largest) : 0.0f;
  const __m512 inverse = _mm512_set1_ps(amax > 0 ? 127.0f / amax : 0.0f), zero = _mm512_setzero_ps();
  const __m512i a = _mm512_cvtps_epi32(finite ? _mm512_mul_ps(low, inverse) : zero);
  const __m512i b = _mm512_cvtps_epi32(finite ? _mm512_mul_ps(high, inverse) : zero);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(block->codes[r]), _mm512_cvtsepi32_epi8(a));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(block->codes[r] + 16), _mm512_cvtsepi32_epi8(b));
  block->d[r] = finite ? amax / 127.0f : std::numeric_limits<float>::quiet_NaN();
  block->sum[r] = block->d[r] * float(_mm512_reduce_add_epi32(_mm512_add_epi32(a, b)));
}

// 16 columns' weights of up to kPanelBlocks blocks: codes as signed bytes, fours of k side by side; a value is code * d
// (q6_k: each d for 16 of k) + m.
struct Panel {
  alignas(64) int8_t codes[kPanelBlocks][8][64];
  alignas(64) float d[kPanelBlocks][2][kGroupRows];
  alignas(64) float m[kPanelBlocks][kGroupRows];
};

LZ_AVX512BF16_INLINE __m512 Halves(const uint8_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
LZ_AVX512BF16_INLINE __m512 Bytes(const uint8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
LZ_AVX512BF16_INLINE __m512 SignedBytes(const uint8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}

template <int F>
LZ_AVX512BF16_INLINE void DecodeCodes(const uint8_t* p, int8_t (*codes)[64]) {
  if constexpr (F == kQ8_0) {
    for (int c = 0; c < 8; ++c) {
      const __m512i code = _mm512_xor_si512(_mm512_loadu_si512(p + 64 * c), _mm512_set1_epi8(char(0x80)));
      _mm512_store_si512(codes[c], code);
    }
    return;
  }
  const __m512i low = _mm512_set1_epi8(15), zero = _mm512_set1_epi8(F == kQ4_0 ? 8 : F == kQ6_K ? 32 : 0);
  for (int c = 0; c < 4; ++c) {
    const __m512i bytes = _mm512_loadu_si512(p + 64 * c);
    __m512i parts[2] = {_mm512_and_si512(bytes, low), _mm512_and_si512(_mm512_srli_epi16(bytes, 4), low)};
    for (int h = 0; h < 2; ++h) {
      if constexpr (F == kQ6_K) {
        const __m512i two = _mm512_srl_epi16(_mm512_loadu_si512(p + 256 + 64 * h), _mm_cvtsi32_si128(2 * c));
        parts[h] = _mm512_or_si512(parts[h], _mm512_slli_epi16(_mm512_and_si512(two, _mm512_set1_epi8(3)), 4));
      }
      _mm512_store_si512(codes[c + 4 * h], _mm512_sub_epi8(parts[h], zero));
    }
  }
}

// Blocks [first, first + blocks) of one group's.
template <int F>
LZ_AVX512BF16 void Decode(const uint8_t* group, int64_t k, int64_t first, int64_t blocks, Panel* panel) {
  const uint8_t* scales = group + ScalesBegin(F, k);
  for (int64_t i = 0; i < blocks; ++i) {
    const int64_t block = first + i;
    DecodeCodes<F>(group + block * kPackedCodes[F], panel->codes[i]);
    if constexpr (F == kQ4_0 || F == kQ8_0) {
      _mm512_store_ps(panel->d[i][0], Halves(scales + block * 32));
    } else if constexpr (F == kQ4_1) {
      _mm512_store_ps(panel->d[i][0], Halves(scales + block * 64));
      _mm512_store_ps(panel->m[i], Halves(scales + block * 64 + 32));
    } else if constexpr (F == kQ4_K) {
      const uint8_t *of256 = scales + block / 8 * 320, *own = of256 + 64 + block % 8 * 32;
      _mm512_store_ps(panel->d[i][0], _mm512_mul_ps(Halves(of256), Bytes(own)));
      const __m512 minimum = _mm512_mul_ps(Halves(of256 + 32), Bytes(own + 16));
      _mm512_store_ps(panel->m[i], _mm512_sub_ps(_mm512_setzero_ps(), minimum));
    } else {
      const uint8_t *of256 = scales + block / 8 * 288, *own = of256 + 32 + block % 8 * 32;
      _mm512_store_ps(panel->d[i][0], _mm512_mul_ps(Halves(of256), SignedBytes(own)));
      _mm512_store_ps(panel->d[i][1], _mm512_mul_ps(Halves(of256), SignedBytes(own + 16)));
    }
  }
}

// How many values of k share a scale, and the tiles for them: integers in 0 to 3, a strip's codes in 4 and 5, a panel's
// in 6 and 7.
template <int F>
struct Shape {
  static constexpr int kParts = F == kQ6_K ? 2 : 1;
  static constexpr uint8_t kQuads = 8 / kParts;
  static constexpr uint16_t kRowBytes[8] = {64, 64, 64, 64, 4 * kQuads, 4 * kQuads, 64, 64};
  static constexpr uint8_t kRows[8] = {16, 16, 16, 16, 16, 16, kQuads, kQuads};
};

constexpr int kBatch = 4;  // products under way while those before them are scaled
using Integers = int32_t[kStrip][kGroupRows];

// Product i of a strip with a panel: its block, and the block's part.
template <int kTile, int F>
LZ_AVX512BF16_INLINE void Multiply(const ActivationBlock* a, const Panel& panel, int64_t i, int64_t count,
                                   Integers* out) {
  if (i >= count) return;
  const int64_t block = i / Shape<F>::kParts, part = i % Shape<F>::kParts;
  constexpr int kA = 4 + kTile % 2, kB = 6 + kTile % 2;
  Tiles::Zero<kTile>();
  Tiles::Load<kA>(a[block].codes[0] + 16 * part, kActivationBlock);
  Tiles::Load<kB>(panel.codes[block][part * Shape<F>::kQuads], 64);
  Tiles::AddDotInt8<kTile, kA, kB>();
  Tiles::Store<kTile>(out[kTile], 64);
}
template <int F>
LZ_AVX512BF16_INLINE void MultiplyBatch(const ActivationBlock* a, const Panel& panel, int64_t i, int64_t count,
                                        Integers* out) {
  Multiply<0, F>(a, panel, i, count, out);
  Multiply<1, F>(a, panel, i + 1, count, out);
  Multiply<2, F>(a, panel, i + 2, count, out);
  Multiply<3, F>(a, panel, i + 3, count, out);
}

template <int F>
LZ_AVX512BF16_INLINE void AddScaled(const Integers& v, const ActivationBlock& a, const Panel& panel, int64_t block,
                                    int part, __m512* totals) {
  const __m512 d = _mm512_load_ps(panel.d[block][part]);
  constexpr bool kOffset = F == kQ4_1 || F == kQ4_K;
  const __m512 m = kOffset ? _mm512_load_ps(panel.m[block]) : d;
#pragma GCC unroll 16
  for (int r = 0; r < kStrip; ++r) {
    const __m512 value = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_load_si512(v[r])), d);
    totals[r] = _mm512_fmadd_ps(value, _mm512_set1_ps(a.d[r]), totals[r]);
    if constexpr (kOffset) totals[r] = _mm512_fmadd_ps(m, _mm512_set1_ps(a.sum[r]), totals[r]);
  }
}

// sums (+)= the products of a strip with a panel.
template <int F>
LZ_AVX512BF16 void SumStrip(const ActivationBlock* a, const Panel& panel, int64_t blocks, bool add,
                            float (*sums)[kGroupRows]) {
  __m512 totals[kStrip];
#pragma GCC unroll 16
  for (int r = 0; r < kStrip; ++r) totals[r] = add ? _mm512_load_ps(sums[r]) : _mm512_setzero_ps();
  alignas(64) Integers v[2][kBatch];
  const int64_t count = blocks * Shape<F>::kParts;
  MultiplyBatch<F>(a, panel, 0, count, v[0]);
  for (int64_t i = 0; i < count; i += kBatch) {
    const int64_t now = i / kBatch % 2;
    MultiplyBatch<F>(a, panel, i + kBatch, count, v[1 - now]);
    for (int64_t j = 0; j < std::min<int64_t>(kBatch, count - i); ++j) {
      const int64_t block = (i + j) / Shape<F>::kParts, part = (i + j) % Shape<F>::kParts;
      AddScaled<F>(v[now][j], a[block], panel, block, int(part), totals);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kStrip; ++r) _mm512_store_ps(sums[r], totals[r]);
}

template <class T>
LZ_AVX512BF16 void StoreStrip(const lz_kernel_args* args, const RowOffsets& offsets, int64_t row, int64_t column,
                              const float (*sums)[kGroupRows]) {
  const lz_tensor &output = args->tensors[kOutput], &bias = args->tensors[kBias];
  const int64_t columns = std::min(kGroupRows, output.shape[output.ndim - 1] - column);
  const int64_t rows = std::min(kStrip, NumRows(output) - row);
  alignas(64) float add[kGroupRows] = {};
  for (int64_t c = 0; Given(bias) && c < columns; ++c) add[c] = float(View(bias).Get({column + c}));
  const __mmask16 mask = columns >= 16 ? __mmask16(0xffff) : __mmask16((1u << columns) - 1);
  for (int64_t r = 0; r < rows; ++r) {
    const __m512 v = _mm512_add_ps(_mm512_load_ps(sums[r]), _mm512_load_ps(add));
    StoreFloats(v, mask, Data<T>(output) + offsets[row + r] + column);
  }
}

template <int F, class T>
LZ_AVX512BF16 void RunGroups(const lz_kernel_args* args, int64_t begin, int64_t end) {
  const lz_tensor &packed = args->tensors[kPacked], &output = args->tensors[kOutput], &input = args->tensors[kInput];
  const int64_t k = input.shape[input.ndim - 1], blocks = k / kActivationBlock;
  const int64_t strips = (NumRows(output) + kStrip - 1) / kStrip;
  const int64_t at_once =
      std::clamp<int64_t>(kStripsBytes / int64_t(blocks * sizeof(ActivationBlock) + 1), 1, kMaxStrips);
  const auto* activations = static_cast<const ActivationBlock*>(args->workspace);
  const RowOffsets offsets(output);
  const Tiles tiles(Shape<F>::kRowBytes, Shape<F>::kRows);
  Panel panel;
  alignas(64) float sums[kMaxStrips][kStrip][kGroupRows];
  for (int64_t strip = 0; strip < strips; strip += at_once) {
    for (int64_t group = begin; group < end; ++group) {
      for (int64_t block = 0; block < blocks || block == 0; block += kPanelBlocks) {
        const int64_t count = std::min(kPanelBlocks, blocks - block);
        Decode<F>(Data<const uint8_t>(packed) + group * packed.strides[0], k, block, count, &panel);
        for (int64_t s = 0; s < std::min(at_once, strips - strip); ++s) {
          SumStrip<F>(activations + (strip + s) * blocks + block, panel, count, block > 0, sums[s]);
          if (block + count == blocks) StoreStrip<T>(args, offsets, (strip + s) * kStrip, group * kGroupRows, sums[s]);
        }
      }
    }
  }
}

template <class T>
LZ_AVX512BF16 void RoundStrip(const lz_tensor& input, int64_t row, int64_t rows, int64_t blocks, ActivationBlock* out) {
  for (int64_t r = 0; r < kStrip; ++r) {
    const T* x = Data<const T>(input) + RowOffset(input, row + std::min(r, rows - 1));  // behind the last: the last
    for (int64_t b = 0; b < blocks; ++b) RoundToInt8(x + b * kActivationBlock, out + b, r);
  }
}

uint64_t Workspace(const lz_kernel_args* args) {
  const lz_tensor& input = args->tensors[kInput];
  const int64_t strips = (NumRows(input) + kStrip - 1) / kStrip,
                blocks = input.shape[input.ndim - 1] / kActivationBlock;
  return uint64_t(strips * blocks) * sizeof(ActivationBlock);
}

template <class T>
int32_t Run(const lz_kernel_args* args) {
  const lz_tensor& input = args->tensors[kInput];
  const int64_t rows = NumRows(input), k = input.shape[input.ndim - 1], blocks = k / kActivationBlock;
  if (args->workspace_bytes < Workspace(args)) return 1;
  auto* activations = static_cast<ActivationBlock*>(args->workspace);
  // 16k values take about 2 us on one core.
  ParallelFor(args, (rows + kStrip - 1) / kStrip, 16384 / (kStrip * k + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s)
      RoundStrip<T>(input, s * kStrip, std::min(kStrip, rows - s * kStrip), blocks, activations + s * blocks);
  });
  ParallelFor(args, args->tensors[kPacked].shape[0], 1, [&](int64_t begin, int64_t end) {
    switch (args->scalars[kFormat].value.i) {
      case kQ4_0: return RunGroups<kQ4_0, T>(args, begin, end);
      case kQ4_1: return RunGroups<kQ4_1, T>(args, begin, end);
      case kQ8_0: return RunGroups<kQ8_0, T>(args, begin, end);
      case kQ4_K: return RunGroups<kQ4_K, T>(args, begin, end);
      default: return RunGroups<kQ6_K, T>(args, begin, end);
    }
  });
  return 0;
}

int32_t Launch(const lz_kernel_args* args) {
  switch (DTypeOf(args->tensors[kInput])) {
    case DType::kF32: return Run<float>(args);
    case DType::kF16: return Run<F16>(args);
    default: return Run<BF16>(args);
  }
}

constexpr auto kConstraints = std::to_array<Constraint>({
    {"device.isa", Rel::kHasBits, kIsaAvx512 | kIsaAvx512Bf16 | kIsaAmxInt8},
    {"packed.given", Rel::kEq, 1, {}, ReasonCode::kPackedWeightsRequired},
    {"activations", Rel::kEq, kInt8, {}, ReasonCode::kQuantFormatUnsupported},
    {"rows", Rel::kGt, 8},
});
constexpr std::array<std::string_view, 3> kAccepts = {"bias", "packed", "activations"};
constexpr auto kFamily = std::to_array<KernelSpec>({
    {.id = "x86.mlp.linear.gguf.amx",
     .operation = "mlp.linear.gguf",
     .dtypes = kF32F16BF16,
     .constraints = kConstraints,
     .accepts = kAccepts,
     .strides = Strides::kLastDimDense,
     .priority = 90,
     .deterministic = true,
     .numerics = "w4a8-int",
     .launch = &Launch,
     .workspace = &Workspace},
});
}  // namespace
LZ_KERNEL_FAMILY = kFamily;

#else  // not x86-64
LZ_KERNEL_FAMILY = {};
#endif
