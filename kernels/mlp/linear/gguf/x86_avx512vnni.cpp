// Linear with packed GGUF weights and activations in int8 for many rows, with AVX512-VNNI's dot products of bytes.
//   input  [..., k]  f32|f16|bf16, last dim dense     packed [ceil(n / 16), bytes] u8, from linear_gguf_prepack
//   bias   [n]       dtype of input, optional          output [..., n], last dim dense
// Workspace: the int8 input in micro-panels of four rows. Deterministic: a sum depends neither on the threads nor on
// other rows and columns. Source: own. The weights of 48 columns become bytes once for all rows. A tile of four rows
// and 48 columns has twelve sums of integers, and twelve of floats, to which the integers are scaled and added after
// each block of 32.
#include "core/kernel.h"
#include "platform/device.h"

#if defined(__x86_64__)
#include <algorithm>
#include <cstring>

#include "kernels/gemm/gguf/x86_int8.h"
#include "kernels/scratch.h"
#include "kernels/spec.h"

namespace {
using namespace lz;
using namespace lz::gguf;

constexpr int kMicroPanel = 4;                     // rows of a tile
constexpr int kGroups = 3;                         // groups of 16 columns in a tile
constexpr int64_t kPanelBlocks = 32;               // blocks of 32 values
constexpr int64_t kMicroPanelsBytes = 512 * 1024;  // bytes of input in the L2 cache
constexpr int64_t kMaxMicroPanels = 128;           // micro-panels whose sums are kept over several panels

// 32 values of a micro_panel. sum: that of the row's values, d times that of its int8 values; start: the contribution
// of the first and the last 16 values to integer sums, from the offset of the weights.
struct ActivationBlock {
  int8_t values[kMicroPanel][kActivationBlock];
  float d[kMicroPanel], sum[kMicroPanel];
  int32_t start[2][kMicroPanel];
};

using TileSums = float[kMicroPanel][kGroups][kGroupRows];
struct Scratch {
  Panel<kPanelBlocks, kGroups> panel;
  alignas(64) TileSums sums[kMaxMicroPanels];
};

// Memory to prefetch while a tile is summed: `step` bytes per block. All at once, they would delay the tile's
// own loads.
struct Prefetch {
  const uint8_t* p;
  int64_t step;
};

// The first C groups of a tile. sums (+)= the products of a micro-panel with a panel.
template <int F, int C>
LZ_AVX512VNNI __attribute__((noinline)) void SumTile(const ActivationBlock* a,
                                                     const Panel<kPanelBlocks, kGroups>& panel, int64_t blocks,
                                                     bool more, Prefetch prefetch, TileSums* sums) {
  constexpr int kParts = F == kQ6_K ? 2 : 1, kFours = 8 / kParts;
  __m512 totals[kMicroPanel][C];
#pragma GCC unroll 4
  for (int r = 0; r < kMicroPanel; ++r)
#pragma GCC unroll 3
    for (int c = 0; c < C; ++c) totals[r][c] = more ? _mm512_load_ps((*sums)[r][c]) : _mm512_setzero_ps();
  for (int64_t i = 0; i < blocks; ++i, ++a, prefetch.p += prefetch.step) {
    for (int64_t at = 0; at < prefetch.step; at += 64)
      _mm_prefetch(reinterpret_cast<const char*>(prefetch.p + at), _MM_HINT_T1);
#pragma GCC unroll 2
    for (int part = 0; part < kParts; ++part) {
      __m512i v[kMicroPanel][C];
#pragma GCC unroll 4
      for (int r = 0; r < kMicroPanel; ++r)
#pragma GCC unroll 3
        for (int c = 0; c < C; ++c) v[r][c] = kZero<F> ? _mm512_set1_epi32(a->start[part][r]) : _mm512_setzero_si512();
#pragma GCC unroll 8
      for (int four = part * kFours; four < (part + 1) * kFours; ++four) {
        __m512i w[C];
#pragma GCC unroll 3
        for (int c = 0; c < C; ++c) w[c] = _mm512_load_si512(panel.weights[i][four][c]);
#pragma GCC unroll 4
        for (int r = 0; r < kMicroPanel; ++r) {
          int32_t quad;
          std::memcpy(&quad, a->values[r] + 4 * four, 4);
#pragma GCC unroll 3
          for (int c = 0; c < C; ++c) v[r][c] = _mm512_dpbusd_epi32(v[r][c], w[c], _mm512_set1_epi32(quad));
        }
      }
#pragma GCC unroll 4
      for (int r = 0; r < kMicroPanel; ++r)
#pragma GCC unroll 3
        for (int c = 0; c < C; ++c) {
          const __m512 value = _mm512_mul_ps(_mm512_cvtepi32_ps(v[r][c]), _mm512_load_ps(panel.d[i][part][c]));
          totals[r][c] = _mm512_fmadd_ps(value, _mm512_set1_ps(a->d[r]), totals[r][c]);
        }
    }
    if constexpr (kHasOffset<F>) {
#pragma GCC unroll 4
      for (int r = 0; r < kMicroPanel; ++r)
#pragma GCC unroll 3
        for (int c = 0; c < C; ++c)
          totals[r][c] = _mm512_fmadd_ps(_mm512_load_ps(panel.m[i][c]), _mm512_set1_ps(a->sum[r]), totals[r][c]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kMicroPanel; ++r)
#pragma GCC unroll 3
    for (int c = 0; c < C; ++c) _mm512_store_ps((*sums)[r][c], totals[r][c]);
}

// A call's sizes, and its int8 input.
struct Job {
  explicit Job(const lz_kernel_args* args)
      : args(args),
        rows(NumRows(args->tensors[kOutput])),
        k(args->tensors[kInput].shape[args->tensors[kInput].ndim - 1]),
        blocks(k / kActivationBlock),
        micro_panels((rows + kMicroPanel - 1) / kMicroPanel),
        groups(args->tensors[kPacked].shape[0]),
        activations(static_cast<ActivationBlock*>(args->workspace)) {}
  uint64_t workspace() const { return uint64_t(micro_panels * blocks) * sizeof(ActivationBlock); }

  const lz_kernel_args* args;
  int64_t rows, k, blocks, micro_panels, groups;
  ActivationBlock* activations;  // [micro_panels][blocks]
};

template <int F, class T>
LZ_AVX512VNNI void RoundMicroPanel(const Job& job, int64_t micro_panel) {
  const lz_tensor& input = job.args->tensors[kInput];
  const T* x[kMicroPanel];
  for (int64_t r = 0; r < kMicroPanel; ++r)  // past the last row: the last one again
    x[r] = Data<const T>(input) + RowOffset(input, std::min(micro_panel * kMicroPanel + r, job.rows - 1));
  ActivationBlock* out = job.activations + micro_panel * job.blocks;
  for (int64_t b = 0; b < job.blocks; ++b) {
    const FourScales scales = RoundFour(x, b * kActivationBlock, out[b].values);
    const __m128i zero = _mm_set1_epi32(-kZero<F>);
    _mm_storeu_ps(out[b].d, scales.d);
    _mm_storeu_ps(out[b].sum, _mm_mul_ps(scales.d, _mm_cvtepi32_ps(_mm_add_epi32(scales.low, scales.high))));
    const __m128i all = F == kQ6_K ? scales.low : _mm_add_epi32(scales.low, scales.high);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out[b].start[0]), _mm_mullo_epi32(zero, all));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out[b].start[1]), _mm_mullo_epi32(zero, scales.high));
  }
}

template <int F>
void SumGroups(const ActivationBlock* a, const Panel<kPanelBlocks, kGroups>& panel, int64_t blocks, bool more,
               int64_t groups, const Prefetch& prefetch, TileSums* sums) {
  switch (groups) {
    case 1: return SumTile<F, 1>(a, panel, blocks, more, prefetch, sums);
    case 2: return SumTile<F, 2>(a, panel, blocks, more, prefetch, sums);
    default: return SumTile<F, kGroups>(a, panel, blocks, more, prefetch, sums);
  }
}

// Micro-panels [begin, end) times the groups from `first` on that make one panel; prefetches the next panel meanwhile.
template <int F, class T>
LZ_AVX512VNNI void RunPanel(const Job& job, const OutputColumns<T>& output, int64_t first, int64_t begin, int64_t end) {
  auto& scratch = ScratchOfThread<Scratch>();
  const lz_tensor& packed = job.args->tensors[kPacked];
  const int64_t groups = std::min<int64_t>(kGroups, job.groups - first);
  const int64_t next_groups = std::clamp<int64_t>(job.groups - first - kGroups, 0, kGroups);
  const int64_t times = std::max<int64_t>((end - begin) * job.blocks, 1);
  Prefetch prefetch = {Data<const uint8_t>(packed) + (first + kGroups) * packed.strides[0],
                       (next_groups * packed.strides[0] + times - 1) / times};
  for (int64_t block = 0; block < job.blocks || block == 0; block += kPanelBlocks) {
    const int64_t count = std::min(kPanelBlocks, job.blocks - block);
    for (int64_t g = 0; g < groups; ++g) {
      const uint8_t* group = Data<const uint8_t>(packed) + (first + g) * packed.strides[0];
      Decode<F, false>(group, job.k, block, count, int(g), &scratch.panel);
    }
    for (int64_t s = begin; s < end; ++s) {
      TileSums& sums = scratch.sums[job.blocks <= kPanelBlocks ? 0 : s - begin];
      SumGroups<F>(job.activations + s * job.blocks + block, scratch.panel, count, block > 0, groups, prefetch, &sums);
      prefetch.p += count * prefetch.step;
      if (block + count >= job.blocks) output.Store(s * kMicroPanel, kMicroPanel, first, sums);
    }
  }
}

// The number of micro-panels that are multiplied with a panel at once: as many as a cache holds, fewer if threads would
// be idle. Parts have equal sizes, because each thread takes equally many.
int64_t MicroPanelsAtOnce(const Job& job, int64_t panels) {
  constexpr int64_t kFewest = 8;  // micro-panels; decoding a panel takes less time than multiplying one micro-panel
  const int64_t most =
      std::clamp<int64_t>(kMicroPanelsBytes / int64_t(job.blocks * sizeof(ActivationBlock) + 1), 1, kMaxMicroPanels);
  const int64_t threads = job.args->parallel ? job.args->parallel->num_threads : 1;
  const int64_t for_threads = std::min((2 * threads - 1) / panels + 1, (job.micro_panels - 1) / kFewest + 1);
  const int64_t parts = std::max((job.micro_panels - 1) / most + 1, for_threads);
  return (job.micro_panels - 1) / parts + 1;
}

template <int F, class T>
int32_t Run(const lz_kernel_args* args) {
  const Job job(args);
  if (args->workspace_bytes < job.workspace()) return 1;
  // 16k values take about 1 us on one core.
  ParallelFor(args, job.micro_panels, 16384 / (kMicroPanel * job.k + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s) RoundMicroPanel<F, T>(job, s);
  });
  if (job.micro_panels == 0 || job.groups == 0) return 0;
  const int64_t panels = (job.groups + kGroups - 1) / kGroups, at_once = MicroPanelsAtOnce(job, panels);
  const OutputColumns<T> output(args);
  ParallelFor(args, (job.micro_panels + at_once - 1) / at_once * panels, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t micro_panel = i / panels * at_once;
      RunPanel<F>(job, output, i % panels * kGroups, micro_panel, std::min(micro_panel + at_once, job.micro_panels));
    }
  });
  return 0;
}

uint64_t Workspace(const lz_kernel_args* args) { return Job(args).workspace(); }

int32_t Launch(const lz_kernel_args* args) {
  return WithFloatType(DTypeOf(args->tensors[kInput]), [&](auto t) {
    return WithFormat(args->scalars[kFormat].value.i, [&](auto f) { return Run<f, decltype(t)>(args); });
  });
}

constexpr auto kConstraints = std::to_array<Constraint>({
    {"device.isa", Rel::kHasBits, kIsaAvx512 | kIsaAvx512Vnni},
    gguf::kPackedGiven,
    gguf::Activations(kInt8),
});
// hwy.mlp.linear.gguf.int8 is faster.
constexpr auto kFewRows = std::to_array<Constraint>({{"rows", Rel::kLe, 16}});
constexpr auto kPreferences = std::to_array<Preference>({{.when = kFewRows, .priority = kAfterOthers}});
constexpr std::array kFamily = {CpuSpec("x86.mlp.linear.gguf.avx512vnni", &Launch,
                                        {.operation = "mlp.linear.gguf",
                                         .constraints = kConstraints,
                                         .accepts = gguf::kAccepts,
                                         .priority = 85,
                                         .preferences = kPreferences,
                                         .numerics = "w4a8-int",
                                         .workspace = &Workspace})};
}  // namespace
LZ_KERNEL_FAMILY = kFamily;

#else  // not x86-64
LZ_KERNEL_FAMILY = {};
#endif
