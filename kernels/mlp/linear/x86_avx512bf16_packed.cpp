// Linear in bf16 with AVX512-BF16's dot products for many rows: the input is packed, so that sums need no folding.
//   input  [..., k]  bf16, last dim dense     weight [n, k]  bf16, last dim dense
//   bias   [n]       bf16, optional           output [..., n]
// Workspace: the input in strips of 16 rows (x86_strips.h). Deterministic. Source: own. VDPBF16PS sums pairs of
// products in FP32 and takes denormals for zero. Weights are read as stored, one pair broadcast at a time.
#include "core/kernel.h"
#include "platform/device.h"

#if defined(__x86_64__)
#include <cstring>

#include "kernels/mlp/linear/x86_strips.h"

namespace {
using namespace lz;
using namespace lz::ops::mlp_linear;
using namespace lz::x86_strips;

constexpr int64_t kBlockK = 1024;
constexpr int64_t kBlockStrips = 12;  // with kBlockK: 384 KiB of input in a second-level cache
constexpr int64_t kSumsStride = kBlockStrips * kStrip;
using SumsOfColumn = float[kSumsStride];  // the rows of a strip side by side
constexpr int kTileStrips = 3;            // kTileStrips x kTileColumns sums fill the registers
constexpr int kTileColumns = 8;

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
                        float (*sums)[kSumsStride]) {
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

// The products of `columns` columns from `first` on with `strips` strips, all of k.
void SumBlock(const lz_tensor& weight, const uint32_t* packed, int64_t strips, int64_t first, int64_t columns,
              SumsOfColumn* sums) {
  const int64_t k = weight.shape[1], strip_size = StripSize(k);
  for (int64_t from = 0; from < k; from += kBlockK) {
    const int64_t size = std::min(kBlockK, k - from);
    for (int64_t column = 0; column < columns; column += kTileColumns) {
      const uint16_t* w[kTileColumns];  // behind the last column: the last column again
      for (int64_t c = 0; c < kTileColumns; ++c)
        w[c] = Data<const uint16_t>(weight) + (first + std::min(column + c, columns - 1)) * weight.strides[0] + from;
      const int64_t groups = CeilDiv(strips, kTileStrips);
      for (int64_t group = 0; group < groups; ++group) {  // of nearly equal size
        const int64_t begin = strips * group / groups, end = strips * (group + 1) / groups;
        const uint32_t* x = packed + begin * strip_size + from / 2 * kStrip;
        float(*to)[kSumsStride] = reinterpret_cast<float(*)[kSumsStride]>(sums[column] + begin * kStrip);
        switch (end - begin) {
          case 1: Tile<1>(x, strip_size, w, size, from > 0, to); break;
          case 2: Tile<2>(x, strip_size, w, size, from > 0, to); break;
          default: Tile<3>(x, strip_size, w, size, from > 0, to);
        }
      }
    }
  }
}

void RunColumns(const lz_kernel_args* args, const OutputRows& output, int64_t first, int64_t columns) {
  const lz_tensor& weight = args->tensors[kWeight];
  const int64_t strips = CeilDiv(output.rows, kStrip), strip_size = StripSize(weight.shape[1]);
  alignas(64) SumsOfColumn sums[kBlockColumns] = {};  // k may be 0
  for (int64_t strip = 0; strip < strips; strip += kBlockStrips) {
    const int64_t count = std::min(kBlockStrips, strips - strip);
    SumBlock(weight, static_cast<const uint32_t*>(args->workspace) + strip * strip_size, count, first, columns, sums);
    for (int64_t s = 0; s < count; ++s)
      output.Store(sums[0] + s * kStrip, kSumsStride, (strip + s) * kStrip, first, columns);
  }
}

int32_t Launch(const lz_kernel_args* args) {
  const OutputRows output(args);
  return Run(args, [&](int64_t begin, int64_t end) {
    for (int64_t first = begin; first < end; first += kBlockColumns)
      RunColumns(args, output, first, std::min(kBlockColumns, end - first));
  });
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
