// Linear in bf16 with AVX512-BF16's dot products for many rows: the input is packed, so that sums need no folding.
//   input  [..., k]  bf16, last dim dense     weight [n, k]  bf16, last dim dense
//   bias   [n]       bf16, optional           output [..., n]
// Workspace: the input in strips of 16 rows, [rows / 16][k / 2][16] pairs. Deterministic. Source: own. VDPBF16PS sums
// pairs of products in FP32 and takes denormals for zero. Weights are read as stored, one pair broadcast at a time.
#include "core/kernel.h"
#include "platform/device.h"

#if defined(__x86_64__)
// gcc 12 takes the undefined upper parts in its own intrinsics for a mistake.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop

#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/launch.h"
#include "ops/mlp/linear.h"

namespace {
using namespace lz;
using namespace lz::ops::mlp_linear;

#define LZ_AVX512BF16 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")))
#define LZ_AVX512BF16_INLINE LZ_AVX512BF16 __attribute__((always_inline)) static inline

constexpr int64_t kStrip = 16;         // rows of a vector
constexpr int64_t kBlockStrips = 12;   // with kBlockPairs: 384 KiB of input in a second-level cache
constexpr int64_t kBlockPairs = 512;   // of k
constexpr int64_t kBlockColumns = 32;  // the unit in which threads share the work
constexpr int kTileStrips = 3;         // kTileStrips x kTileColumns sums fill the registers
constexpr int kTileColumns = 8;
using Sums = float[kBlockColumns][kBlockStrips * kStrip];

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// r[i] lane j <- r[j] lane i.
LZ_AVX512BF16_INLINE void Transpose(__m512* r) {
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

// One strip of input rows: out[pair][row], zeros where there is no row and behind k.
LZ_AVX512BF16 void PackStrip(const lz_tensor& input, int64_t first, int64_t rows, int64_t k, uint32_t* out) {
  const uint16_t* x[kStrip];
  for (int64_t r = 0; r < kStrip; ++r)
    x[r] = Data<const uint16_t>(input) + RowOffset(input, first + std::min(r, rows - 1));
  for (int64_t i = 0; i < k; i += 32) {
    const __mmask32 mask = k - i >= 32 ? ~__mmask32{0} : (__mmask32{1} << (k - i)) - 1;
    __m512 v[16];
#pragma GCC unroll 16
    for (int r = 0; r < 16; ++r)
      v[r] = _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(r < rows ? mask : __mmask32{0}, x[r] + i));
    Transpose(v);
    const int64_t pairs = std::min<int64_t>(16, (k - i + 1) / 2);
    if (pairs == 16) {
#pragma GCC unroll 16
      for (int p = 0; p < 16; ++p) _mm512_store_ps(out + (i / 2 + p) * kStrip, v[p]);
    } else {
      for (int64_t p = 0; p < pairs; ++p) _mm512_store_ps(out + (i / 2 + p) * kStrip, v[p]);
    }
  }
}

// One pair of k: of the weights, only the first element counts if kOdd.
template <int S, bool kOdd>
LZ_AVX512BF16_INLINE void Step(const uint32_t* x, int64_t strip_size, const uint16_t* const* w, int64_t pair,
                               __m512 (*acc)[kTileColumns]) {
  __m512bh xs[S];
#pragma GCC unroll 8
  for (int s = 0; s < S; ++s) xs[s] = (__m512bh)_mm512_load_si512(x + s * strip_size + pair * kStrip);
#pragma GCC unroll 8
  for (int c = 0; c < kTileColumns; ++c) {
    int32_t both = w[c][2 * pair];
    if constexpr (!kOdd) std::memcpy(&both, w[c] + 2 * pair, 4);
    const __m512bh ws = (__m512bh)_mm512_set1_epi32(both);
#pragma GCC unroll 8
    for (int s = 0; s < S; ++s) acc[s][c] = _mm512_dpbf16_ps(acc[s][c], xs[s], ws);
  }
}

// sums[c][s * 16 + lane] (+)= the products of kTileColumns rows of weights, k elements each, with S strips, which are
// `strip_size` apart.
template <int S>
LZ_AVX512BF16 void Tile(const uint32_t* x, int64_t strip_size, const uint16_t* const* w, int64_t k, bool add,
                        float (*sums)[kBlockStrips * kStrip]) {
  __m512 acc[S][kTileColumns];
#pragma GCC unroll 8
  for (int c = 0; c < kTileColumns; ++c)
#pragma GCC unroll 8
    for (int s = 0; s < S; ++s) acc[s][c] = add ? _mm512_loadu_ps(sums[c] + s * kStrip) : _mm512_setzero_ps();
  for (int64_t pair = 0; pair < k / 2; ++pair) Step<S, false>(x, strip_size, w, pair, acc);
  if (k % 2) Step<S, true>(x, strip_size, w, k / 2, acc);
#pragma GCC unroll 8
  for (int c = 0; c < kTileColumns; ++c)
#pragma GCC unroll 8
    for (int s = 0; s < S; ++s) _mm512_storeu_ps(sums[c] + s * kStrip, acc[s][c]);
}

// Rows [first, first + rows) of one strip, columns [0, columns) of `out`'s rows from `column` on.
LZ_AVX512BF16 void StoreStrip(const float (*sums)[kBlockStrips * kStrip], const lz_tensor& out, const uint16_t* bias,
                              int64_t first, int64_t rows, int64_t column, int64_t columns) {
  __m512 v[16];
#pragma GCC unroll 16
  for (int c = 0; c < 16; ++c) v[c] = _mm512_loadu_ps(sums[c]);
  Transpose(v);
  const __mmask16 mask = columns >= 16 ? __mmask16(0xffff) : __mmask16((1u << columns) - 1);
  __m512 add = _mm512_setzero_ps();
  if (bias) {
    const __m512i b = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, bias + column));
    add = _mm512_castsi512_ps(_mm512_slli_epi32(b, 16));
  }
  for (int64_t r = 0; r < rows; ++r) {
    uint16_t* to = Data<uint16_t>(out) + RowOffset(out, first + r) + column;
    _mm256_mask_storeu_epi16(to, mask, (__m256i)_mm512_cvtneps_pbh(_mm512_add_ps(v[r], add)));
  }
}

// The products of `columns` columns from `first` on with `strips` strips, all of k.
void SumBlock(const lz_tensor& weight, const uint32_t* packed, int64_t strip_size, int64_t strips, int64_t first,
              int64_t columns, Sums& sums) {
  const int64_t k = weight.shape[1];
  for (int64_t from = 0; from < k; from += 2 * kBlockPairs) {
    const int64_t size = std::min(2 * kBlockPairs, k - from);
    for (int64_t column = 0; column < columns; column += kTileColumns) {
      const uint16_t* w[kTileColumns];  // behind the last column: the last column again
      for (int64_t c = 0; c < kTileColumns; ++c)
        w[c] = Data<const uint16_t>(weight) + (first + std::min(column + c, columns - 1)) * weight.strides[0] + from;
      const int64_t groups = CeilDiv(strips, kTileStrips);
      for (int64_t group = 0; group < groups; ++group) {  // of nearly equal size
        const int64_t begin = strips * group / groups, end = strips * (group + 1) / groups;
        const uint32_t* x = packed + begin * strip_size + from / 2 * kStrip;
        float(*to)[kBlockStrips * kStrip] =
            reinterpret_cast<float(*)[kBlockStrips * kStrip]>(sums[column] + begin * kStrip);
        switch (end - begin) {
          case 1: Tile<1>(x, strip_size, w, size, from > 0, to); break;
          case 2: Tile<2>(x, strip_size, w, size, from > 0, to); break;
          default: Tile<3>(x, strip_size, w, size, from > 0, to);
        }
      }
    }
  }
}

void RunColumns(const lz_kernel_args* args, int64_t first, int64_t columns) {
  const lz_tensor& weight = args->tensors[kWeight];
  const lz_tensor& output = args->tensors[kOutput];
  const uint16_t* bias = Given(args->tensors[kBias]) ? Data<const uint16_t>(args->tensors[kBias]) : nullptr;
  const int64_t rows = NumRows(output), strips = CeilDiv(rows, kStrip);
  const int64_t strip_size = CeilDiv(weight.shape[1], 2) * kStrip;
  alignas(64) Sums sums;
  std::memset(sums, 0, sizeof(sums));  // k may be 0
  for (int64_t strip = 0; strip < strips; strip += kBlockStrips) {
    const int64_t count = std::min(kBlockStrips, strips - strip);
    SumBlock(weight, static_cast<const uint32_t*>(args->workspace) + strip * strip_size, strip_size, count, first,
             columns, sums);
    for (int64_t s = 0; s < count; ++s) {
      const int64_t row = (strip + s) * kStrip;
      for (int64_t c = 0; c < columns; c += 16) {
        StoreStrip(reinterpret_cast<const float(*)[kBlockStrips * kStrip]>(sums[c] + s * kStrip), output, bias, row,
                   std::min(kStrip, rows - row), first + c, std::min<int64_t>(16, columns - c));
      }
    }
  }
}

uint64_t Workspace(const lz_kernel_args* args) {
  const int64_t strips = CeilDiv(NumRows(args->tensors[kOutput]), kStrip);
  return uint64_t(strips * CeilDiv(args->tensors[kWeight].shape[1], 2) * kStrip) * sizeof(uint32_t);
}

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor& weight = args->tensors[kWeight];
  const int64_t n = weight.shape[0], k = weight.shape[1], rows = NumRows(args->tensors[kOutput]);
  if (args->workspace_bytes < Workspace(args)) return 1;
  const int64_t strip_size = CeilDiv(k, 2) * kStrip;
  ParallelFor(args, CeilDiv(rows, kStrip), 16384 / (k + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s)
      PackStrip(args->tensors[kInput], s * kStrip, std::min(kStrip, rows - s * kStrip), k,
                static_cast<uint32_t*>(args->workspace) + s * strip_size);
  });
  ParallelFor(args, CeilDiv(n, kBlockColumns), 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block)
      RunColumns(args, block * kBlockColumns, std::min(kBlockColumns, n - block * kBlockColumns));
  });
  return 0;
}

constexpr auto kConstraints = std::to_array<Constraint>({
    {"device.isa", Rel::kHasBits, kIsaAvx512 | kIsaAvx512Bf16},
    {"rows", Rel::kGt, 32},
});
constexpr auto kFamily = std::to_array<KernelSpec>({
    {.id = "x86.mlp.linear.avx512bf16_packed",
     .operation = "mlp.linear",
     .dtypes = Mask(DType::kBF16),
     .constraints = kConstraints,
     .accepts = kAcceptsAll,
     .strides = Strides::kLastDimDense,
     .priority = 60,
     .deterministic = true,
     .launch = &Launch,
     .workspace = &Workspace},
});
}  // namespace
LZ_KERNEL_FAMILY = kFamily;

#else  // not x86-64
LZ_KERNEL_FAMILY = {};
#endif
