// Linear with packed GGUF weights and activations in int8 for many rows: blocks are multiplied with AMX tiles.
//   input  [..., k]  f32|f16|bf16, last dim dense     packed [ceil(n / 16), bytes] u8, from linear_gguf_prepack
//   bias   [n]       dtype of input, optional          output [..., n], last dim dense
// Workspace: the int8 input in strips of 16 rows. Deterministic. Source: own. The weights of a block are converted to
// signed bytes, once for all rows; their products with a strip are exact integers [16 rows][16 columns], which are
// scaled in FP32.
#include "core/kernel.h"
#include "platform/device.h"

#if defined(__x86_64__)
#include <algorithm>

#include "kernels/mlp/linear/gguf/x86_int8.h"
#include "kernels/scratch.h"
#include "kernels/x86_tiles.h"

namespace {
using namespace lz;
using namespace lz::gguf;
using x86::Tiles;

constexpr int64_t kStrip = 16;                // rows of a tile
constexpr int64_t kPanelBlocks = 64;          // blocks of 32 values: 32 KiB of weights
constexpr int64_t kStripsBytes = 512 * 1024;  // bytes of input in the L2 cache
constexpr int64_t kMaxStrips = 32;            // strips whose sums are kept over several panels

// 32 values of a strip. sum: that of the row's values, d times that of its int8 values.
struct ActivationBlock {
  int8_t codes[kStrip][kActivationBlock];
  float d[kStrip], sum[kStrip];
};

using Codes = Panel<kPanelBlocks, 1>;
struct Scratch {
  Codes panel;
  alignas(64) float sums[kMaxStrips][kStrip][1][kGroupRows];
};

// The number of values of k that share a scale, and the tiles for them: integers in 0 to 3, a strip in 4 and 5, a panel
// in 6 and 7.
template <int F>
struct Shape {
  static constexpr int kParts = F == kQ6_K ? 2 : 1;
  static constexpr uint8_t kQuads = 8 / kParts;
  static constexpr uint16_t kRowBytes[8] = {64, 64, 64, 64, 4 * kQuads, 4 * kQuads, 64, 64};
  static constexpr uint8_t kRows[8] = {16, 16, 16, 16, 16, 16, kQuads, kQuads};
};

constexpr int kBatch = 4;  // products in flight while the previous ones are scaled
using Integers = int32_t[kStrip][kGroupRows];

// Product i of a strip with a panel: its block, and the block's part.
template <int kTile, int F>
LZ_AVX512BF16_INLINE void Multiply(const ActivationBlock* a, const Codes& panel, int64_t i, int64_t count,
                                   Integers* out) {
  if (i >= count) return;
  const int64_t block = i / Shape<F>::kParts, part = i % Shape<F>::kParts;
  constexpr int kA = 4 + kTile % 2, kB = 6 + kTile % 2;
  Tiles::Zero<kTile>();
  Tiles::Load<kA>(a[block].codes[0] + 16 * part, kActivationBlock);
  Tiles::Load<kB>(panel.codes[block][part * Shape<F>::kQuads][0], 64);
  Tiles::AddDotInt8<kTile, kA, kB>();
  Tiles::Store<kTile>(out[kTile], 64);
}
template <int F>
LZ_AVX512BF16_INLINE void MultiplyBatch(const ActivationBlock* a, const Codes& panel, int64_t i, int64_t count,
                                        Integers* out) {
  Multiply<0, F>(a, panel, i, count, out);
  Multiply<1, F>(a, panel, i + 1, count, out);
  Multiply<2, F>(a, panel, i + 2, count, out);
  Multiply<3, F>(a, panel, i + 3, count, out);
}

template <int F>
LZ_AVX512BF16_INLINE void AddScaled(const Integers& v, const ActivationBlock& a, const Codes& panel, int64_t block,
                                    int part, __m512* totals) {
  const __m512 d = _mm512_load_ps(panel.d[block][part][0]);
  const __m512 m = kHasOffset<F> ? _mm512_load_ps(panel.m[block][0]) : d;
#pragma GCC unroll 16
  for (int r = 0; r < kStrip; ++r) {
    const __m512 value = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_load_si512(v[r])), d);
    totals[r] = _mm512_fmadd_ps(value, _mm512_set1_ps(a.d[r]), totals[r]);
    if constexpr (kHasOffset<F>) totals[r] = _mm512_fmadd_ps(m, _mm512_set1_ps(a.sum[r]), totals[r]);
  }
}

// sums (+)= the products of a strip with a panel.
template <int F>
LZ_AVX512BF16 void SumStrip(const ActivationBlock* a, const Codes& panel, int64_t blocks, bool add,
                            float (*sums)[1][kGroupRows]) {
  __m512 totals[kStrip];
#pragma GCC unroll 16
  for (int r = 0; r < kStrip; ++r) totals[r] = add ? _mm512_load_ps(sums[r][0]) : _mm512_setzero_ps();
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
  for (int r = 0; r < kStrip; ++r) _mm512_store_ps(sums[r][0], totals[r]);
}

template <int F, class T>
LZ_AVX512BF16 void RunGroups(const lz_kernel_args* args, int64_t begin, int64_t end) {
  const lz_tensor &packed = args->tensors[kPacked], &output = args->tensors[kOutput], &input = args->tensors[kInput];
  const int64_t k = input.shape[input.ndim - 1], blocks = k / kActivationBlock;
  const int64_t strips = (NumRows(output) + kStrip - 1) / kStrip;
  const int64_t at_once =
      std::clamp<int64_t>(kStripsBytes / int64_t(blocks * sizeof(ActivationBlock) + 1), 1, kMaxStrips);
  const auto* activations = static_cast<const ActivationBlock*>(args->workspace);
  const OutputColumns<T> sink(args);
  auto& [panel, sums] = ScratchOfThread<Scratch>();
  const Tiles tiles(Shape<F>::kRowBytes, Shape<F>::kRows);
  for (int64_t strip = 0; strip < strips; strip += at_once) {
    for (int64_t group = begin; group < end; ++group) {
      for (int64_t block = 0; block < blocks || block == 0; block += kPanelBlocks) {
        const int64_t count = std::min(kPanelBlocks, blocks - block);
        Decode<F, true>(Data<const uint8_t>(packed) + group * packed.strides[0], k, block, count, 0, &panel);
        for (int64_t s = 0; s < std::min(at_once, strips - strip); ++s) {
          SumStrip<F>(activations + (strip + s) * blocks + block, panel, count, block > 0, sums[s]);
          if (block + count == blocks) sink.Store((strip + s) * kStrip, kStrip, group, sums[s]);
        }
      }
    }
  }
}

template <class T>
LZ_AVX512BF16 void RoundStrip(const lz_tensor& input, int64_t row, int64_t rows, int64_t blocks, ActivationBlock* out) {
  const T* x[kStrip];
  for (int64_t r = 0; r < kStrip; ++r)  // past the last row: the last one again
    x[r] = Data<const T>(input) + RowOffset(input, row + std::min(r, rows - 1));
  for (int64_t b = 0; b < blocks; ++b) {
    for (int64_t r = 0; r < kStrip; r += 4) {
      const FourScales scales = RoundFour(x + r, b * kActivationBlock, out[b].codes + r);
      const __m128 sum = _mm_cvtepi32_ps(_mm_add_epi32(scales.low, scales.high));
      _mm_storeu_ps(out[b].d + r, scales.d);
      _mm_storeu_ps(out[b].sum + r, _mm_mul_ps(scales.d, sum));
    }
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
