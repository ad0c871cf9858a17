// Linear with packed GGUF weights and activations in int8 for many rows: blocks are multiplied with AMX tiles.
//   input  [..., k]  f32|f16|bf16, last dim dense     packed [ceil(n / 16), bytes] u8, from linear_gguf_prepack
//   bias   [n]       dtype of input, optional          output [..., n], last dim dense
// Workspace: the int8 input in micro-panels of 16 rows. Deterministic. Source: own. The weights of a block are
// converted to signed bytes, once for all rows; their products with a micro-panel are exact integers [16 rows][16
// columns], which are scaled in FP32.
#include "core/kernel.h"
#include "platform/device.h"

#if defined(__x86_64__)
#include <algorithm>

#include "kernels/gemm/gguf/x86_int8.h"
#include "kernels/gemm/x86_amx.h"
#include "kernels/scratch.h"
#include "kernels/spec.h"

namespace {
using namespace lz;
using namespace lz::gguf;
using x86::Tiles;

constexpr int64_t kMicroPanel = 16;                // rows of a tile
constexpr int64_t kPanelBlocks = 64;               // blocks of 32 values: 32 KiB of weights
constexpr int64_t kMicroPanelsBytes = 512 * 1024;  // bytes of input in the L2 cache
constexpr int64_t kMaxMicroPanels = 32;            // micro-panels whose sums are kept over several panels

// 32 values of a micro_panel. sum: that of the row's values, d times that of its int8 values.
struct ActivationBlock {
  int8_t values[kMicroPanel][kActivationBlock];
  float d[kMicroPanel], sum[kMicroPanel];
};

using WeightPanel = Panel<kPanelBlocks, 1>;
struct Scratch {
  WeightPanel panel;
  alignas(64) float sums[kMaxMicroPanels][kMicroPanel][1][kGroupRows];
};

// The number of values of k that share a scale, and the tiles for them: integers in 0 to 3, a micro-panel in 4 and 5, a
// panel in 6 and 7.
template <int F>
struct Shape {
  static constexpr int kParts = F == kQ6_K ? 2 : 1;
  static constexpr uint8_t kQuads = 8 / kParts;
  static constexpr uint16_t kRowBytes[8] = {64, 64, 64, 64, 4 * kQuads, 4 * kQuads, 64, 64};
  static constexpr uint8_t kRows[8] = {16, 16, 16, 16, 16, 16, kQuads, kQuads};
};

constexpr int kBatch = 4;  // products in flight while the previous ones are scaled
using Integers = int32_t[kMicroPanel][kGroupRows];

// Product i of a micro-panel with a panel: its block, and the block's part.
template <int kTile, int F>
LZ_AVX512BF16_INLINE void Multiply(const ActivationBlock* a, const WeightPanel& panel, int64_t i, int64_t count,
                                   Integers* out) {
  if (i >= count) return;
  const int64_t block = i / Shape<F>::kParts, part = i % Shape<F>::kParts;
  constexpr int kA = 4 + kTile % 2, kB = 6 + kTile % 2;
  Tiles::Zero<kTile>();
  Tiles::Load<kA>(a[block].values[0] + 16 * part, kActivationBlock);
  Tiles::Load<kB>(panel.weights[block][part * Shape<F>::kQuads][0], 64);
  Tiles::AddDotInt8<kTile, kA, kB>();
  Tiles::Store<kTile>(out[kTile], 64);
}
template <int F>
LZ_AVX512BF16_INLINE void MultiplyBatch(const ActivationBlock* a, const WeightPanel& panel, int64_t i, int64_t count,
                                        Integers* out) {
  Multiply<0, F>(a, panel, i, count, out);
  Multiply<1, F>(a, panel, i + 1, count, out);
  Multiply<2, F>(a, panel, i + 2, count, out);
  Multiply<3, F>(a, panel, i + 3, count, out);
}

template <int F>
LZ_AVX512BF16_INLINE void AddScaled(const Integers& v, const ActivationBlock& a, const WeightPanel& panel,
                                    int64_t block, int part, __m512* totals) {
  const __m512 d = _mm512_load_ps(panel.d[block][part][0]);
  const __m512 m = kHasOffset<F> ? _mm512_load_ps(panel.m[block][0]) : d;
#pragma GCC unroll 16
  for (int r = 0; r < kMicroPanel; ++r) {
    const __m512 value = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_load_si512(v[r])), d);
    totals[r] = _mm512_fmadd_ps(value, _mm512_set1_ps(a.d[r]), totals[r]);
    if constexpr (kHasOffset<F>) totals[r] = _mm512_fmadd_ps(m, _mm512_set1_ps(a.sum[r]), totals[r]);
  }
}

// sums (+)= the products of a micro-panel with a panel.
template <int F>
LZ_AVX512BF16 void SumMicroPanel(const ActivationBlock* a, const WeightPanel& panel, int64_t blocks, bool add,
                                 float (*sums)[1][kGroupRows]) {
  __m512 totals[kMicroPanel];
#pragma GCC unroll 16
  for (int r = 0; r < kMicroPanel; ++r) totals[r] = add ? _mm512_load_ps(sums[r][0]) : _mm512_setzero_ps();
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
  for (int r = 0; r < kMicroPanel; ++r) _mm512_store_ps(sums[r][0], totals[r]);
}

template <int F, class T>
LZ_AVX512BF16 void RunGroups(const lz_kernel_args* args, int64_t begin, int64_t end) {
  const lz_tensor &packed = args->tensors[kPacked], &output = args->tensors[kOutput], &input = args->tensors[kInput];
  const int64_t k = input.shape[input.ndim - 1], blocks = k / kActivationBlock;
  const int64_t micro_panels = (NumRows(output) + kMicroPanel - 1) / kMicroPanel;
  const int64_t at_once =
      std::clamp<int64_t>(kMicroPanelsBytes / int64_t(blocks * sizeof(ActivationBlock) + 1), 1, kMaxMicroPanels);
  const auto* activations = static_cast<const ActivationBlock*>(args->workspace);
  const OutputColumns<T> sink(args);
  auto& [panel, sums] = ScratchOfThread<Scratch>();
  const Tiles tiles(Shape<F>::kRowBytes, Shape<F>::kRows);
  for (int64_t micro_panel = 0; micro_panel < micro_panels; micro_panel += at_once) {
    for (int64_t group = begin; group < end; ++group) {
      for (int64_t block = 0; block < blocks || block == 0; block += kPanelBlocks) {
        const int64_t count = std::min(kPanelBlocks, blocks - block);
        Decode<F, true>(Data<const uint8_t>(packed) + group * packed.strides[0], k, block, count, 0, &panel);
        for (int64_t s = 0; s < std::min(at_once, micro_panels - micro_panel); ++s) {
          SumMicroPanel<F>(activations + (micro_panel + s) * blocks + block, panel, count, block > 0, sums[s]);
          if (block + count == blocks) sink.Store((micro_panel + s) * kMicroPanel, kMicroPanel, group, sums[s]);
        }
      }
    }
  }
}

template <class T>
LZ_AVX512BF16 void RoundMicroPanel(const lz_tensor& input, int64_t row, int64_t rows, int64_t blocks,
                                   ActivationBlock* out) {
  const T* x[kMicroPanel];
  for (int64_t r = 0; r < kMicroPanel; ++r)  // past the last row: the last one again
    x[r] = Data<const T>(input) + RowOffset(input, row + std::min(r, rows - 1));
  for (int64_t b = 0; b < blocks; ++b) {
    for (int64_t r = 0; r < kMicroPanel; r += 4) {
      const FourScales scales = RoundFour(x + r, b * kActivationBlock, out[b].values + r);
      const __m128 sum = _mm_cvtepi32_ps(_mm_add_epi32(scales.low, scales.high));
      _mm_storeu_ps(out[b].d + r, scales.d);
      _mm_storeu_ps(out[b].sum + r, _mm_mul_ps(scales.d, sum));
    }
  }
}

uint64_t Workspace(const lz_kernel_args* args) {
  const lz_tensor& input = args->tensors[kInput];
  const int64_t micro_panels = (NumRows(input) + kMicroPanel - 1) / kMicroPanel,
                blocks = input.shape[input.ndim - 1] / kActivationBlock;
  return uint64_t(micro_panels * blocks) * sizeof(ActivationBlock);
}

template <class T>
int32_t Run(const lz_kernel_args* args) {
  const lz_tensor& input = args->tensors[kInput];
  const int64_t rows = NumRows(input), k = input.shape[input.ndim - 1], blocks = k / kActivationBlock;
  if (args->workspace_bytes < Workspace(args)) return 1;
  auto* activations = static_cast<ActivationBlock*>(args->workspace);
  // 16k values take about 2 us on one core.
  ParallelFor(args, (rows + kMicroPanel - 1) / kMicroPanel, 16384 / (kMicroPanel * k + 1) + 1,
              [&](int64_t begin, int64_t end) {
                for (int64_t s = begin; s < end; ++s)
                  RoundMicroPanel<T>(input, s * kMicroPanel, std::min(kMicroPanel, rows - s * kMicroPanel), blocks,
                                     activations + s * blocks);
              });
  ParallelFor(args, args->tensors[kPacked].shape[0], 1, [&](int64_t begin, int64_t end) {
    WithFormat(args->scalars[kFormat].value.i, [&](auto f) { RunGroups<f, T>(args, begin, end); });
  });
  return 0;
}

int32_t Launch(const lz_kernel_args* args) {
  return WithFloatType(DTypeOf(args->tensors[kInput]), [&](auto t) { return Run<decltype(t)>(args); });
}

constexpr auto kConstraints = std::to_array<Constraint>({
    {"device.isa", Rel::kHasBits, kIsaAvx512 | kIsaAvx512Bf16 | kIsaAmxInt8},
    gguf::kPackedGiven,
    gguf::Activations(kInt8),
});
// With half a tile of the matrix unit hwy.mlp.linear.gguf.int8 is faster.
constexpr auto kFewRows = std::to_array<Constraint>({{"rows", Rel::kLe, 8}});
constexpr auto kPreferences = std::to_array<Preference>({{.when = kFewRows, .priority = kAfterOthers}});
constexpr std::array kFamily = {CpuSpec("x86.mlp.linear.gguf.amx", &Launch,
                                        {.operation = "mlp.linear.gguf",
                                         .constraints = kConstraints,
                                         .accepts = gguf::kAccepts,
                                         .priority = 90,
                                         .preferences = kPreferences,
                                         .numerics = "w4a8-int",
                                         .workspace = &Workspace})};
}  // namespace
LZ_KERNEL_FAMILY = kFamily;

#else  // not x86-64
LZ_KERNEL_FAMILY = {};
#endif
