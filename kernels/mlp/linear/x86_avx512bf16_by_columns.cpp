// Linear in bf16 with AVX512-BF16's dot products and weights that are stored by columns, for more than a few rows.
//   input  [..., k]  bf16, last dim dense     weight [n, k]  bf16, first dim dense
//   bias   [n]       bf16, optional           output [..., n]
// Workspace: the input in strips of 16 rows (x86_strips.h), whose pairs of k are broadcast; blocks of weights become
// pairs too and stay in a first-level cache for all rows. Deterministic. Source: own. VDPBF16PS sums pairs of products
// in FP32 and takes denormals for zero.
#include "core/kernel.h"
#include "platform/device.h"

#if defined(__x86_64__)
#include <cstring>

#include "kernels/mlp/linear/x86_strips.h"

namespace {
using namespace lz;
using namespace lz::ops::mlp_linear;
using namespace lz::x86_strips;

constexpr int64_t kBlockK = 384;     // of kBlockColumns columns: 24 KiB of weights in a first-level cache
constexpr int64_t kBlockRows = 256;  // of input: with kBlockK 192 KiB in a second-level cache
constexpr int64_t kAhead = 16;       // rows of weights to ask for: they are too far apart for a CPU to foresee
constexpr int kTileRows = 8, kTileVectors = int(kBlockColumns / kStrip);
using Panel = uint32_t[kBlockK / 2][kBlockColumns];
using Sums = float[kBlockRows][kBlockColumns];

// `columns` of a row of weights as 16 halves of pairs, zeros behind them.
LZ_AVX512BF16_INLINE __m512i LoadHalves(const uint16_t* w, int64_t columns) {
  const __mmask16 mask = columns >= kStrip ? __mmask16(0xffff) : __mmask16((1u << std::max<int64_t>(0, columns)) - 1);
  return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, w));
}

// panel[pair][c]: values 2 pair and 2 pair + 1 of column c; zeros behind k and behind `columns`.
LZ_AVX512BF16 void PackPanel(const uint16_t* w, int64_t stride, int64_t k, int64_t columns, Panel& panel) {
  for (int64_t i = 0; i < k; i += 2) {
    for (int64_t c = 0; c < kBlockColumns; c += kStrip) {
      const uint16_t* from = w + i * stride + c;
      __m512i pairs = _mm512_setzero_si512();
      if (c < columns) pairs = LoadHalves(from, columns - c);
      if (c < columns && i + 1 < k)
        pairs = _mm512_or_si512(pairs, _mm512_slli_epi32(LoadHalves(from + stride, columns - c), 16));
      _mm512_store_si512(panel[i / 2] + c, pairs);
    }
    _mm_prefetch(reinterpret_cast<const char*>(w + (i + kAhead) * stride), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(w + (i + kAhead + 1) * stride), _MM_HINT_T0);
  }
}

// sums[r] (+)= the products of `pairs` pairs of kTileRows rows of a strip with the panel.
LZ_AVX512BF16 void Tile(const uint32_t* x, const Panel& panel, int64_t pairs, bool add, float (*sums)[kBlockColumns]) {
  __m512 acc[kTileRows][kTileVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kTileRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kTileVectors; ++v) acc[r][v] = add ? _mm512_load_ps(sums[r] + v * kStrip) : _mm512_setzero_ps();
  for (int64_t pair = 0; pair < pairs; ++pair, x += kStrip) {
    __m512bh ws[kTileVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kTileVectors; ++v) ws[v] = (__m512bh)_mm512_load_si512(panel[pair] + v * kStrip);
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) {
      const __m512bh xs = (__m512bh)_mm512_set1_epi32(int32_t(x[r]));
#pragma GCC unroll 8
      for (int v = 0; v < kTileVectors; ++v) acc[r][v] = _mm512_dpbf16_ps(acc[r][v], xs, ws[v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kTileRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kTileVectors; ++v) _mm512_store_ps(sums[r] + v * kStrip, acc[r][v]);
}

LZ_AVX512BF16 void StoreRow(const float* sums, const uint16_t* bias, int64_t columns, uint16_t* out) {
  for (int64_t c = 0; c < columns; c += kStrip) {
    const __mmask16 mask = columns - c >= kStrip ? __mmask16(0xffff) : __mmask16((1u << (columns - c)) - 1);
    __m512 sum = _mm512_load_ps(sums + c);
    if (bias) sum = _mm512_add_ps(sum, _mm512_castsi512_ps(_mm512_slli_epi32(LoadHalves(bias + c, columns - c), 16)));
    _mm256_mask_storeu_epi16(out + c, mask, (__m256i)_mm512_cvtneps_pbh(sum));
  }
}

// Columns [first, first + columns), at most kBlockColumns, of `rows` rows from `row` on, a multiple of kStrip.
void RunBlock(const lz_kernel_args* args, const OutputRows& output, int64_t row, int64_t rows, int64_t first,
              int64_t columns) {
  const lz_tensor& weight = args->tensors[kWeight];
  const int64_t k = weight.shape[1], stride = weight.strides[1], strip_size = StripSize(k);
  const uint32_t* packed = static_cast<const uint32_t*>(args->workspace) + row / kStrip * strip_size;
  alignas(64) Panel panel;
  alignas(64) Sums sums;
  if (k == 0) std::memset(sums, 0, sizeof(sums));
  for (int64_t from = 0; from < k; from += kBlockK) {
    const int64_t size = std::min(kBlockK, k - from);
    PackPanel(Data<const uint16_t>(weight) + first + from * stride, stride, size, columns, panel);
    for (int64_t r = 0; r < rows; r += kTileRows) {
      const uint32_t* x = packed + r / kStrip * strip_size + from / 2 * kStrip + r % kStrip;
      Tile(x, panel, CeilDiv(size, 2), from > 0, sums + r);
    }
  }
  for (int64_t r = 0; r < rows; ++r)
    StoreRow(sums[r], output.bias ? output.bias + first : nullptr, columns,
             output.data + output.offsets[row + r] + first);
}

int32_t Launch(const lz_kernel_args* args) {
  const OutputRows output(args);
  return Run(args, [&](int64_t begin, int64_t end) {
    for (int64_t row = 0; row < output.rows; row += kBlockRows)
      for (int64_t first = begin; first < end; first += kBlockColumns)
        RunBlock(args, output, row, std::min(kBlockRows, output.rows - row), first,
                 std::min(kBlockColumns, end - first));
  });
}

constexpr auto kConstraints = std::to_array<Constraint>({
    {"device.isa", Rel::kHasBits, kIsaAvx512 | kIsaAvx512Bf16},
    {"rows", Rel::kGt, 4},  // fewer rows: hwy.mlp.linear.by_columns
    {"input.last_dim_stride1", Rel::kEq, 1},
    {"weight.columns_dense", Rel::kEq, 1},
    {"bias.last_dim_stride1", Rel::kEq, 1},
});
constexpr auto kFamily = std::to_array<KernelSpec>({
    {.id = "x86.mlp.linear.avx512bf16_by_columns",
     .operation = "mlp.linear",
     .dtypes = Mask(DType::kBF16),
     .constraints = kConstraints,
     .accepts = kAcceptsAll,
     .strides = Strides::kAny,
     .priority = 85,
     .deterministic = true,
     .launch = &Launch,
     .workspace = &Workspace},
});
}  // namespace
LZ_KERNEL_FAMILY = kFamily;

#else  // not x86-64
LZ_KERNEL_FAMILY = {};
#endif
