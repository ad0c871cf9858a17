// Linear in bf16 with packed GGUF weights for any number of rows, with AVX512-BF16's dot products: four bits of a
// weight at a time become bf16 by a look-up in a register, exactly; lanes are output columns.
//   input  [..., k]  bf16, last dim dense     packed [ceil(n / 16), bytes] u8, from linear_gguf_prepack
//   bias   [n]       bf16, optional           output [..., n], last dim dense
// Workspace: the input in the order of the look-ups, and the sums of its blocks. Deterministic: a sum depends neither
// on the threads nor on other rows and columns. Source: own. VDPBF16PS treats denormals as zero. A sum that is not an
// in_range number is computed again as in the definition.
#include "core/kernel.h"
#include "platform/device.h"

#if defined(__x86_64__)
#include <algorithm>

#include "kernels/gemm/gguf/exact_sums.h"
#include "kernels/gemm/gguf/spec.h"
#include "kernels/gemm/gguf/x86_scales.h"
#include "kernels/gemm/prefetch.h"
#include "kernels/gemm/x86_exact_sums.h"
#include "kernels/launch.h"
#include "kernels/spec.h"
#include "kernels/x86_intrinsics.h"
#include "ops/mlp/linear/gguf.h"

namespace {
using namespace lz;
using namespace lz::gguf;
using namespace lz::ops::mlp_linear_gguf;

constexpr int kMaxTile = 4;  // rows that share a look-up
constexpr int kChains = 4;   // chains of dot products per block, two for each 16 values

// 32 values of a row: of each four the first and third, then the second and fourth, the order in which look-ups produce
// the weights.
struct Block {
  uint32_t pairs[8][2];
};

// The values of a table's words: four bits, stored twice, so that the fifth bit of a look-up needs no mask; for q8_0
// those of the lower and those of the upper half of a byte; for q6_k six bits in two tables.
template <int F>
constexpr float ValueOf(int table, int word) {
  if (F == kQ6_K) return float(32 * table + word - 32);
  if (F == kQ8_0) return table == 0 ? float(word % 16) : float(16 * (word % 16) - 128);
  return float(word % 16 - (F == kQ4_0 ? 8 : 0));
}
template <int F>
LZ_AVX512BF16_INLINE __m512i TableOf(int table) {
  alignas(64) uint16_t words[32];
  for (int i = 0; i < 32; ++i) words[i] = FloatToBF16(ValueOf<F>(table, i));
  return _mm512_load_si512(words);
}

// Sums of blocks of M rows, in lanes of columns.
template <int M>
struct Sums {
  __m512 v[M][kChains];
  LZ_AVX512BF16_INLINE void Clear() {
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m)
#pragma GCC unroll 4
      for (int chain = 0; chain < kChains; ++chain) v[m][chain] = _mm512_setzero_ps();
  }
  // Adds weights, times pair [quad][odd] of the input.
  LZ_AVX512BF16_INLINE void Add(__m512i w, int chain, const Block* const* x, int64_t block, int quad, int odd) {
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) {
      const __m512i pair = _mm512_set1_epi32(int(x[m][block].pairs[quad][odd]));
      v[m][chain] = _mm512_dpbf16_ps(v[m][chain], (__m512bh)w, (__m512bh)pair);
    }
  }
};

LZ_AVX512BF16_INLINE __m512i LoadQuantized(const uint8_t* p) {
  __m512i weights = _mm512_loadu_si512(p);
  asm("" : "+v"(weights));  // otherwise the compiler loads them again for each use, and loads are the bottleneck
  return weights;
}
// Moves bit `from` of each word to bit `to`.
LZ_AVX512BF16_INLINE __m512i Shift(__m512i v, int from, int to) {
  if (from == to) return v;
  return from > to ? _mm512_srli_epi16(v, unsigned(from - to)) : _mm512_slli_epi16(v, unsigned(to - from));
}

// The block's dot products.
template <int F, int M>
LZ_AVX512BF16_INLINE void SumQuantized(const uint8_t* p, const __m512i* tables, const Block* const* x, int64_t block,
                                       Sums<M>* sums) {
  if constexpr (F == kQ8_0) {
#pragma GCC unroll 8
    for (int c = 0; c < 8; ++c) {
      const __m512i weights = LoadQuantized(p + 64 * c);
#pragma GCC unroll 4
      for (int s = 0; s < 4; ++s)
        sums->Add(_mm512_permutexvar_epi16(Shift(weights, 4 * s, 0), tables[s % 2]), s, x, block, c, s / 2);
    }
    return;
  }
  const __m512i four_bits = _mm512_set1_epi16(15);
  __m512i high[2];
  if constexpr (F == kQ6_K) high[0] = LoadQuantized(p + 256), high[1] = LoadQuantized(p + 320);
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const __m512i weights = LoadQuantized(p + 64 * c);
#pragma GCC unroll 4
    for (int s = 0; s < 4; ++s) {
      const __m512i low = Shift(weights, 4 * s, 0);
      __m512i w;
      if constexpr (F == kQ6_K) {
        const __m512i two = Shift(high[s % 2], s / 2 * 8 + 2 * c, 4);
        w = _mm512_permutex2var_epi16(tables[0], _mm512_ternarylogic_epi32(four_bits, low, two, 0xca), tables[1]);
      } else {
        w = _mm512_permutexvar_epi16(low, tables[0]);
      }
      sums->Add(w, s, x, block, c + s % 2 * 4, s / 2);
    }
  }
}

// total[m] += the block's sums times its scales; x_sums: sums of the rows' blocks.
template <int F, int M>
LZ_AVX512BF16_INLINE void AddBlock(const uint8_t* scales, int64_t block, const float* const* x_sums,
                                   const Sums<M>& sums, __m512* total) {
  __m512 d, second;
  if constexpr (F == kQ4_0 || F == kQ8_0) {
    d = second = Halves(scales + block * 32);
  } else if constexpr (F == kQ4_1) {
    d = Halves(scales + block * 64), second = Halves(scales + block * 64 + 32);
  } else if constexpr (F == kQ4_K) {
    const uint8_t *of256 = scales + block / 8 * 320, *own = of256 + 64 + block % 8 * 32;
    d = _mm512_mul_ps(Halves(of256), Bytes(own));
    second = _mm512_mul_ps(Halves(of256 + 32), Bytes(own + 16));
  } else {
    const uint8_t *of256 = scales + block / 8 * 288, *own = of256 + 32 + block % 8 * 32;
    const __m512 both = Halves(of256);
    d = _mm512_mul_ps(both, SignedBytes(own)), second = _mm512_mul_ps(both, SignedBytes(own + 16));
  }
#pragma GCC unroll 4
  for (int m = 0; m < M; ++m) {
    const __m512 low = _mm512_add_ps(sums.v[m][0], sums.v[m][2]), high = _mm512_add_ps(sums.v[m][1], sums.v[m][3]);
    if constexpr (F == kQ6_K) {
      total[m] = _mm512_fmadd_ps(high, second, _mm512_fmadd_ps(low, d, total[m]));
      continue;
    }
    total[m] = _mm512_fmadd_ps(_mm512_add_ps(low, high), d, total[m]);
    if constexpr (F == kQ4_1) total[m] = _mm512_fmadd_ps(second, _mm512_set1_ps(x_sums[m][block]), total[m]);
    if constexpr (F == kQ4_K) total[m] = _mm512_fnmadd_ps(second, _mm512_set1_ps(x_sums[m][block]), total[m]);
  }
}

// total[m]: 16 columns of M rows.
template <int F, int M>
LZ_AVX512BF16 __attribute__((noinline)) void RunGroup(const uint8_t* group, int64_t k, const Block* const* x,
                                                      const float* const* x_sums, __m512* out) {
  constexpr int64_t kWeightBytes = kPackedCodes[F], kScales = kPackedScales[F];
  const int64_t blocks = k / 32, prefetch = gemm::kQuantizedPrefetchBytes / kWeightBytes;
  const uint8_t *scales = group + ScalesBegin(F, k), *next = group + PackedBytes(F, k);
  const __m512i tables[2] = {TableOf<F>(0), TableOf<F>(1)};
  __m512 total[M];
#pragma GCC unroll 4
  for (int m = 0; m < M; ++m) total[m] = _mm512_setzero_ps();
  for (int64_t block = 0; block < blocks; ++block) {
    const uint8_t* weights = group + block * kWeightBytes;
    const int64_t beyond = block + prefetch - blocks;
    const uint8_t* early = beyond < 0 ? weights + prefetch * kWeightBytes : next + beyond * kWeightBytes;
    for (int64_t line = 0; line < kWeightBytes; line += 64) _mm_prefetch(early + line, _MM_HINT_T0);
    _mm_prefetch(next + (scales - group) + block * kScales, _MM_HINT_T0);
    Sums<M> sums;
    sums.Clear();
    SumQuantized<F, M>(weights, tables, x, block, &sums);
    AddBlock<F, M>(scales, block, x_sums, sums, total);
  }
#pragma GCC unroll 4
  for (int m = 0; m < M; ++m) out[m] = total[m];
}
using Run = decltype(&RunGroup<kQ4_0, 1>);
template <int F>
Run ForRows(int64_t rows) {
  return rows == 1 ? &RunGroup<F, 1> : rows == 2 ? &RunGroup<F, 2> : &RunGroup<F, kMaxTile>;
}
Run RunFor(int64_t format, int64_t rows) {
  return WithFormat(format, [&](auto f) { return ForRows<f>(rows); });
}

// A call's sizes, and its reordered input.
struct Job {
  explicit Job(const lz_kernel_args* args)
      : args(args),
        rows(NumRows(args->tensors[kOutput])),
        k(args->tensors[kInput].shape[args->tensors[kInput].ndim - 1]),
        blocks(k / 32),
        x(static_cast<Block*>(args->workspace)),
        sums(reinterpret_cast<float*>(x + rows * blocks)) {}
  uint64_t workspace() const { return uint64_t(rows * blocks) * (sizeof(Block) + sizeof(float)); }

  LZ_AVX512BF16 void PutRow(int64_t row) const {
    const lz_tensor& input = args->tensors[kInput];
    const uint16_t* from = Data<const uint16_t>(input) + RowOffset(input, row);
    const __m512bh one = (__m512bh)_mm512_set1_epi16(0x3f80);
    for (int64_t b = 0; b < blocks; ++b) {
      const __m512i v = _mm512_loadu_si512(from + 32 * b);
      _mm512_storeu_si512(x + row * blocks + b, _mm512_shufflehi_epi16(_mm512_shufflelo_epi16(v, 0xd8), 0xd8));
      sums[row * blocks + b] = _mm512_reduce_add_ps(_mm512_dpbf16_ps(_mm512_setzero_ps(), (__m512bh)v, one));
    }
  }

  const lz_kernel_args* args;
  int64_t rows, k, blocks;
  Block* x;     // [rows][blocks]
  float* sums;  // [rows][blocks]
};

// The destination of a call's columns.
struct Output {
  explicit Output(const lz_kernel_args* args)
      : tensor(args->tensors[kOutput]), bias(args->tensors[kBias]), offsets(tensor), exact(args) {}

  LZ_AVX512BF16 void Store(int64_t row, int64_t column, __m512 v) const {
    const int64_t left = tensor.shape[tensor.ndim - 1] - column;
    const __mmask16 mask = left >= kGroupRows ? __mmask16(0xffff) : __mmask16((1u << left) - 1);
    v = gemm::WithExactSums(v, mask, [&](int64_t c, float found) { return exact.At(row, column + c, found); });
    if (Given(bias)) {
      const __m256i bits = _mm256_maskz_loadu_epi16(mask, Data<const uint16_t>(bias) + column);
      v = _mm512_add_ps(v, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16)));
    }
    _mm256_mask_storeu_epi16(Data<uint16_t>(tensor) + offsets[row] + column, mask, (__m256i)_mm512_cvtneps_pbh(v));
  }

  const lz_tensor &tensor, &bias;
  RowOffsets offsets;
  gguf::ExactSums exact;
};

LZ_AVX512BF16 void RunGroups(const Job& job, int64_t begin, int64_t end) {
  const lz_tensor& packed = job.args->tensors[kPacked];
  const int64_t format = job.args->scalars[kFormat].value.i;
  const Output output(job.args);
  for (int64_t g = begin; g < end; ++g) {
    for (int64_t row = 0; row < job.rows; row += kMaxTile) {
      const int64_t count = std::min<int64_t>(kMaxTile, job.rows - row);
      const Block* x[kMaxTile];
      const float* sums[kMaxTile];
      __m512 out[kMaxTile];
      for (int64_t m = 0; m < kMaxTile; ++m) {
        const int64_t at = (row + std::min(m, count - 1)) * job.blocks;
        x[m] = job.x + at, sums[m] = job.sums + at;
      }
      RunFor(format, count)(Data<const uint8_t>(packed) + g * packed.strides[0], job.k, x, sums, out);
      for (int64_t m = 0; m < count; ++m) output.Store(row + m, g * kGroupRows, out[m]);
    }
  }
}

uint64_t Workspace(const lz_kernel_args* args) { return Job(args).workspace(); }

int32_t Launch(const lz_kernel_args* args) {
  const Job job(args);
  if (args->workspace_bytes < job.workspace()) return 1;
  // 32k values take about 1 us on one core.
  ParallelFor(args, job.rows, 32768 / (job.k + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) job.PutRow(row);
  });
  // 64k weights take about 1 us on one core.
  ParallelFor(args, args->tensors[kPacked].shape[0],
              65536 / (kGroupRows * (job.k + 1) * std::max<int64_t>(job.rows, 1)) + 1,
              [&](int64_t begin, int64_t end) { RunGroups(job, begin, end); });
  return 0;
}

constexpr auto kConstraints = std::to_array<Constraint>({
    {"device.isa", Rel::kHasBits, kIsaAvx512 | kIsaAvx512Bf16},
    gguf::kPackedGiven,
    gguf::Activations(kAsGiven),
});
constexpr std::array kFamily = {CpuSpec("x86.mlp.linear.gguf.avx512bf16", &Launch,
                                        {.operation = "mlp.linear.gguf",
                                         .dtypes = Mask(DType::kBF16),
                                         .constraints = kConstraints,
                                         .accepts = gguf::kAccepts,
                                         .priority = 85,
                                         .workspace = &Workspace})};
}  // namespace
LZ_KERNEL_FAMILY = kFamily;

#else  // not x86-64
LZ_KERNEL_FAMILY = {};
#endif
