// Linear with weights in any quantized format for few rows: quantized weights become bf16 by look-ups in registers,
// exactly, for AVX512-BF16's dot products with an input in bf16, or floats for multiply-adds with other inputs; scales
// multiply the FP32 sums of their groups.
//   input  [..., k]  f32|f16|bf16, last dim dense      weight [n, k / (1 or 2)]  last dim dense
//   packed [n, k / 2] u8, optional, as mlp.linear.prepack orders it, read instead of weight
//   weight_scale, zero_point, tensor_scale: as in the contract, groups of a multiple of 16 values
//   bias   [n]       dtype of input, optional          output [..., n]
// Workspace: the input in the order in which weights are decoded, and its sums. Deterministic. Source: own. VDPBF16PS
// treats denormals as zero. A sum that is not an in_range number is computed again as in the definition.
#include "core/kernel.h"
#include "platform/device.h"

#if defined(__x86_64__)
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "kernels/gemm/prefetch.h"
#include "kernels/gemm/quantized/exact_sums.h"
#include "kernels/gemm/quantized/x86_job.h"
#include "kernels/gemm/x86_exact_sums.h"
#include "kernels/gemm/x86_reduce.h"
#include "kernels/launch.h"
#include "kernels/spec.h"

namespace {
using namespace lz;
using namespace lz::ops;
using namespace lz::ops::mlp_linear_quantized;
using quantized::Job;
using quantized::PairScales;
using quantized::RowScales;
using quantized::Scaling;
using quantized::Storage;

constexpr int64_t kTileRows = 8;  // upper bound of rows that share a decoded weight
constexpr int64_t kColumns = 16;  // columns whose sums are folded and stored at once

// Quantized weights of columns, and the rows they are multiplied with: X is uint16_t for bf16, or float.
template <Storage kStorage, class X, int C>
struct Operands {
  quantized::Decoder<kStorage> decode;
  const uint8_t* weights[C];
  int64_t bytes;
  const X* x;
  const float* sums;
  int64_t prefetch_rows;  // distance in rows from the weights to those to prefetch
  int64_t prefetch;       // the same in bytes
  int64_t rows[C] = {};   // rows of the weights
};

// 32 values of the input as pairs, or 16.
LZ_AVX512BF16_VBMI_INLINE __m512bh LoadRow(const uint16_t* x) { return (__m512bh)_mm512_load_si512(x); }
LZ_AVX512BF16_VBMI_INLINE __m512 LoadRow(const float* x) { return _mm512_load_ps(x); }
LZ_AVX512BF16_VBMI_INLINE __m512 AddProducts(__m512 sum, __m512bh w, __m512bh x) { return _mm512_dpbf16_ps(sum, w, x); }
LZ_AVX512BF16_VBMI_INLINE __m512 AddProducts(__m512 sum, __m512 w, __m512 x) { return _mm512_fmadd_ps(w, x, sum); }

// Sums of columns for R rows, in lanes.
template <class X, Storage kStorage, Scaling kScaling, bool kSplit, int R>
struct Columns {
  static constexpr int kVectors = quantized::VectorsOf(kStorage), kSets = kSplit ? 2 : 1;
  static constexpr int kHalves = sizeof(X) == sizeof(float) ? 2 : 1;  // halves per vector of quantized weights
  static constexpr bool kOffsets = kScaling == Scaling::kFloatsAndOffsets;
  static constexpr int C = R <= 2 ? 4 : R == 4 ? 2 : 1;  // columns processed together, as many as fit the registers
  using Of = Operands<kStorage, X, C>;

  struct Scales {
    __m512 scale[kSets], offset[kSets];
  };

  // total[c][r] += step `s`, whose scales and offsets are given. kRest: not all of its 64 bytes belong to the columns.
  template <bool kRest>
  LZ_AVX512BF16_VBMI_INLINE static void Step(const Of& of, int64_t s, const Scales* by, __m512 (*total)[R]) {
    const X* x = of.x + s * kVectors * R * 32;
    typename quantized::Decoder<kStorage>::Lookup looked_up[C];
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
      const uint8_t* at = of.weights[c] + s * 64;
      _mm_prefetch(at + of.prefetch, _MM_HINT_T0);
      __m512i weights =
          kRest ? _mm512_maskz_loadu_epi8((__mmask64{1} << (of.bytes - s * 64)) - 1, at) : _mm512_loadu_si512(at);
      asm(""
          : "+v"(weights));  // otherwise the compiler loads them again for each use: a core has one load of 64 bytes
                             // a cycle
      looked_up[c] = of.decode.template LookUp<X>(weights);
    }
#pragma GCC unroll 2
    for (int set = 0; set < kSets; ++set) {
      __m512 part[C][R];
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c)
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) part[c][r] = _mm512_setzero_ps();
#pragma GCC unroll 4
      for (int v = set; v < kVectors; v += kSets)
#pragma GCC unroll 2
        for (int half = 0; half < kHalves; ++half)
#pragma GCC unroll 8
          for (int r = 0; r < R; ++r) {
            auto values = LoadRow(x + (v * R + r) * 32 + half * 16);
            asm("" : "+v"(values));  // once for all columns
#pragma GCC unroll 4
            for (int c = 0; c < C; ++c)  // sums alternate: none waits for the previous one
              part[c][r] = AddProducts(part[c][r], of.decode.template Get<X>(looked_up[c], v, half), values);
          }
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c)
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          if constexpr (kScaling == Scaling::kRow) {
            total[c][r] = _mm512_add_ps(total[c][r], part[c][r]);
            continue;
          }
          if constexpr (kOffsets) {
            const __m512 sums = _mm512_loadu_ps(of.sums + ((s * kSets + set) * R + r) * 16);
            part[c][r] = _mm512_fnmadd_ps(by[c].offset[set], sums, part[c][r]);
          }
          total[c][r] = _mm512_fmadd_ps(part[c][r], by[c].scale[set], total[c][r]);
        }
    }
  }
  // Calls body(s, rest) for steps [from, to) of a column.
  template <class Body>
  LZ_AVX512BF16_VBMI_INLINE static void ForSteps(int64_t bytes, int64_t from, int64_t to, const Body& body) {
    const int64_t whole = std::min(to, bytes / 64);
    for (int64_t s = from; s < whole; ++s) body(s, std::false_type());
    if (whole < to) body(whole, std::true_type());
  }

  // Scales of one byte, each for at most a step's values.
  LZ_AVX512BF16_VBMI_INLINE static void Pairs(const Job& job, const Of& of, const __m512i* lanes, __m512 (*total)[R]) {
    const int64_t steps = (of.bytes + 63) / 64;
    const __m512i next = _mm512_set1_epi8(char(job.scales_of_step));
    for (int64_t from = 0, first = 0; from < steps; from += job.chunk, first += quantized::kPairChunk) {
      const int64_t left = job.scales - first;
      const __mmask64 mask = left >= 64 ? ~__mmask64{0} : (__mmask64{1} << left) - 1;
      PairScales pairs[C];
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) {
        const char* scales = RowScales(job, of.rows[c]).data + first;
        _mm_prefetch(scales + of.prefetch_rows * job.scale_row_bytes, _MM_HINT_T0);
        pairs[c].Load(reinterpret_cast<const uint8_t*>(scales), mask, job.e4m3);
      }
      __m512i index[2] = {PairScales::IndexOf(lanes[0]), PairScales::IndexOf(lanes[1])};
      ForSteps(of.bytes, from, std::min(from + job.chunk, steps), [&](int64_t s, auto rest) LZ_AVX512BF16_VBMI_LAMBDA {
        Scales by[C];
#pragma GCC unroll 2
        for (int set = 0; set < kSets; ++set) {
#pragma GCC unroll 4
          for (int c = 0; c < C; ++c) by[c].scale[set] = pairs[c](index[set]);
          index[set] = _mm512_add_epi8(index[set], next);
        }
        Step<rest>(of, s, by, total);
      });
    }
  }

  LZ_AVX512BF16_VBMI_INLINE static void Floats(const Job& job, const Of& of, const __m512i* lanes, __m512 (*total)[R]) {
    const int64_t steps = (of.bytes + 63) / 64;
    constexpr int64_t kChunk = quantized::kChunk;
    float converted[C][kChunk];
    int32_t converted_zeros[C][kOffsets ? kChunk : 1];
    const __m512 base = _mm512_set1_ps(job.offset);
    for (int64_t from = 0, first = 0; from < steps; from += job.chunk, first += kChunk) {
      const int64_t size = std::min(kChunk, job.scales - first);
      const float* values[C];
      const int32_t* zeros[C];
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) {
        const RowScales scales(job, of.rows[c]);
        values[c] = reinterpret_cast<const float*>(scales.data) + first, zeros[c] = scales.zeros + first;
        if (job.direct) continue;
        quantized::Convert(job, of.rows[c], first, size, converted[c], kOffsets ? converted_zeros[c] : nullptr);
        values[c] = converted[c], zeros[c] = converted_zeros[c];
      }
      int64_t uses = job.steps_of_scale, at = 0;
      Scales by[C];
      ForSteps(of.bytes, from, std::min(from + job.chunk, steps), [&](int64_t s, auto rest) LZ_AVX512BF16_VBMI_LAMBDA {
        if (uses == job.steps_of_scale) {
          const int64_t count = rest ? std::min(size - at, job.scales_of_step) : job.scales_of_step;
          const __mmask16 mask = __mmask16((1u << count) - 1);
#pragma GCC unroll 4
          for (int c = 0; c < C; ++c) {
            const __m512 some = _mm512_maskz_loadu_ps(mask, values[c] + at);
            _mm_prefetch(values[c] + at + gemm::kQuantizedPrefetchBytes / 4, _MM_HINT_T0);
#pragma GCC unroll 2
            for (int set = 0; set < kSets; ++set) {
              by[c].scale[set] = _mm512_permutexvar_ps(lanes[set], some);
              if constexpr (kOffsets) by[c].offset[set] = base;
            }
            if (kOffsets && job.zeros) {
              const __m512i from_zero = _mm512_maskz_loadu_epi32(mask, zeros[c] + at);
              const __m512 offset = _mm512_add_ps(base, _mm512_cvtepi32_ps(from_zero));
#pragma GCC unroll 2
              for (int set = 0; set < kSets; ++set) by[c].offset[set] = _mm512_permutexvar_ps(lanes[set], offset);
            }
          }
          uses = 0, at += count;
        }
        ++uses;
        Step<rest>(of, s, by, total);
      });
    }
  }

  // out[r * kColumns + c]: `columns` of them from `first` on.
  LZ_AVX512BF16_VBMI static void Run(const Job& job, int64_t first, int64_t columns, const void* x, const float* sums,
                                     __m512* out) {
    const int64_t bytes = kVectors == 4 ? (job.k + 1) / 2 : job.k;
    const int64_t prefetch = gemm::WholeTiles(gemm::kQuantizedPrefetchBytes, C * job.weight_stride);
    const int64_t prefetch_rows = prefetch / std::max<int64_t>(1, job.weight_stride);
    Of of{{*job.tables, job.flip}, {}, bytes, static_cast<const X*>(x), sums, prefetch_rows, prefetch};
    const __m512i lanes[2] = {_mm512_load_si512(job.lanes[0]), _mm512_load_si512(job.lanes[1])};
    for (int64_t begin = 0; begin < columns; begin += C, out += C) {
      __m512 total[C][R];
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) {  // columns past the last repeat it
        of.rows[c] = first + std::min(begin + c, columns - 1);
        of.weights[c] = job.weight + of.rows[c] * job.weight_stride;
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) total[c][r] = _mm512_setzero_ps();
      }
      if constexpr (kScaling == Scaling::kRow) {
        ForSteps(bytes, 0, (bytes + 63) / 64,
                 [&](int64_t s, auto rest) LZ_AVX512BF16_VBMI_LAMBDA { Step<rest>(of, s, nullptr, total); });
      } else if constexpr (kScaling == Scaling::kPairs) {
        Pairs(job, of, lanes, total);
      } else {
        Floats(job, of, lanes, total);
      }
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c)
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) out[r * kColumns + c] = total[c][r];
    }
  }
};

using RunColumns = decltype(&Columns<float, Storage::kFloats, Scaling::kRow, false, 1>::Run);
template <class X, Storage kStorage, Scaling kScaling, bool kSplit>
RunColumns ForRows(int64_t rows) {
  if (rows == 1) return &Columns<X, kStorage, kScaling, kSplit, 1>::Run;
  if (rows == 2) return &Columns<X, kStorage, kScaling, kSplit, 2>::Run;
  return rows <= 4 ? &Columns<X, kStorage, kScaling, kSplit, 4>::Run : &Columns<X, kStorage, kScaling, kSplit, 8>::Run;
}
template <class X, Storage kStorage, bool kSplit = false>
RunColumns ForScaling(Scaling scaling, int64_t rows) {
  switch (scaling) {
    case Scaling::kRow: return ForRows<X, kStorage, Scaling::kRow, false>(rows);
    case Scaling::kFloats: return ForRows<X, kStorage, Scaling::kFloats, kSplit>(rows);
    case Scaling::kFloatsAndOffsets: return ForRows<X, kStorage, Scaling::kFloatsAndOffsets, kSplit>(rows);
    default: return ForRows<X, kStorage, Scaling::kPairs, kSplit>(rows);
  }
}
template <class X>
RunColumns RunFor(const Job& job, int64_t rows) {
  switch (job.storage) {
    case Storage::kNibbles: return ForScaling<X, Storage::kNibbles>(job.scaling, rows);
    case Storage::kPackedNibbles:
      if (job.split) return ForScaling<X, Storage::kPackedNibbles, true>(job.scaling, rows);
      return ForScaling<X, Storage::kPackedNibbles>(job.scaling, rows);
    case Storage::kIntegers: return ForScaling<X, Storage::kIntegers>(job.scaling, rows);
    default: return ForScaling<X, Storage::kFloats>(job.scaling, rows);
  }
}

// Rows that share a weight: eight rows of floats would not fit the L1 cache.
int64_t TileRows(const Job& job) { return job.floats ? 4 : kTileRows; }
// The number of rows to process at once out of `left`.
int64_t Height(const Job& job, int64_t left) { return left > 4 ? TileRows(job) : left > 2 ? 4 : left; }

// Puts 128 values of a row in the order of the weights; `count` of them are given, the others are 0.
LZ_AVX512BF16_VBMI void PutBlock(const Job& job, int64_t row, int64_t from, int64_t count, uint16_t* x,
                                 int64_t stride) {
  const lz_tensor& input = job.args->tensors[kInput];
  const uint16_t* at = Data<const uint16_t>(input) + RowOffset(input, row) + from;
  quantized::Order::Of(job.storage, false).Put(at, count, x, stride);
}
LZ_AVX512BF16_VBMI void PutBlock(const Job& job, int64_t row, int64_t from, int64_t count, float* x, int64_t stride) {
  const lz_tensor& input = job.args->tensors[kInput];
  const int64_t offset = RowOffset(input, row) + from;
  alignas(64) uint16_t upper[quantized::kBlock], lower[quantized::kBlock];
  for (int64_t i = 0; i < quantized::kBlock; i += 16) {
    const int64_t left = count - i;
    const __mmask16 mask = left >= 16 ? __mmask16(0xffff) : left <= 0 ? 0 : __mmask16((1u << left) - 1);
    const int64_t at = offset + (left > 0 ? i : 0);
    const __m512 v = DTypeOf(input) == DType::kF32
                         ? _mm512_maskz_loadu_ps(mask, Data<const float>(input) + at)
                         : _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, Data<const uint16_t>(input) + at));
    const __m512i bits = _mm512_castps_si512(v);
    _mm256_store_si256(reinterpret_cast<__m256i*>(upper + i), _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16)));
    _mm256_store_si256(reinterpret_cast<__m256i*>(lower + i), _mm512_cvtepi32_epi16(bits));
  }
  const quantized::Order& order = quantized::Order::Of(job.storage, true);
  alignas(64) uint16_t ordered[2][quantized::kBlock];
  order.Put(upper, quantized::kBlock, ordered[0], 32);
  order.Put(lower, quantized::kBlock, ordered[1], 32);
  for (int64_t v = 0; v < 4; ++v) {
    const __m512i high = _mm512_load_si512(ordered[0] + 32 * v), low = _mm512_load_si512(ordered[1] + 32 * v);
    const __m512i even = _mm512_mask_blend_epi16(0xaaaaaaaa, low, _mm512_slli_epi32(high, 16));
    const __m512i odd = _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(low, 16), high);
    _mm512_storeu_ps(x + v * stride, _mm512_castsi512_ps(even));
    _mm512_storeu_ps(x + v * stride + 16, _mm512_castsi512_ps(odd));
  }
}

// The sums of two values in each lane.
LZ_AVX512BF16_VBMI_INLINE __m512 AddPairs(__m512 sum, const uint16_t* x) {
  return _mm512_dpbf16_ps(sum, (__m512bh)_mm512_loadu_si512(x), (__m512bh)_mm512_set1_epi16(0x3f80));
}
LZ_AVX512BF16_VBMI_INLINE __m512 AddPairs(__m512 sum, const float* x) {
  return _mm512_add_ps(sum, _mm512_add_ps(_mm512_loadu_ps(x), _mm512_loadu_ps(x + 16)));
}

// Puts rows [row, row + height) in the order of the weights, with zeros for missing rows, and sums them.
template <class X>
LZ_AVX512BF16_VBMI void PutTile(const Job& job, int64_t row, int64_t height) {
  X* x = static_cast<X*>(job.x) + row * job.padded();
  for (int64_t r = 0; r < height; ++r) {
    const bool given = row + r < job.rows;
    for (int64_t i = 0; i < job.k; i += quantized::kBlock)
      PutBlock(job, given ? row + r : 0, i, given ? job.k - i : 0, x + i * height + r * 32, height * 32);
  }
  if (!job.sums) return;
  float* sums = job.sums + row * job.steps() * job.sets() * 16;
  const int64_t vectors = job.step / 32, sets = job.sets();
  for (int64_t i = 0; i < job.steps() * sets * height; ++i) {
    const int64_t r = i % height, set = i / height % sets, s = i / height / sets;
    __m512 sum = _mm512_setzero_ps();
    for (int64_t v = set; v < vectors; v += sets) sum = AddPairs(sum, x + ((s * vectors + v) * height + r) * 32);
    _mm512_storeu_ps(sums + i * 16, sum);
  }
}

// Sums of whole rows of a tile.
LZ_AVX512BF16_VBMI void SumRows(const Job& job, int64_t row, int64_t height, float* out) {
  const float* sums = job.sums + row * job.steps() * 16;
  for (int64_t r = 0; r < height; ++r) {
    __m512 sum = _mm512_setzero_ps();
    for (int64_t s = 0; s < job.steps(); ++s) sum = _mm512_add_ps(sum, _mm512_loadu_ps(sums + (s * height + r) * 16));
    out[r] = _mm512_reduce_add_ps(sum);
  }
}

// Columns of a tile of rows.
struct Tile {
  const Job& job;
  const RowOffsets& rows;  // rows of the output
  const float* row_sums;   // sums of the input rows, for Scaling::kRow with offsets

  // At most kColumns from `first` on.
  LZ_AVX512BF16_VBMI void Run(RunColumns run, int64_t row, int64_t height, int64_t first, int64_t count) const {
    __m512 total[kTileRows * kColumns];
    if (count < kColumns)  // columns past the last are summed, not stored
      std::fill_n(total, kTileRows * kColumns, _mm512_setzero_ps());
    run(job, first, count, static_cast<const char*>(job.x) + row * job.padded() * job.x_bytes(),
        job.sums ? job.sums + row * job.steps() * job.sets() * 16 : nullptr, total);
    const bool whole = job.scaling == Scaling::kRow && job.k > 0;
    __m512 scale = _mm512_set1_ps(1), offset = _mm512_set1_ps(job.offset);
    if (job.outer) scale = Factors(first, count);
    if (whole) scale = _mm512_mul_ps(scale, Scales(first, count));
    if (whole && job.zeros)
      offset = _mm512_add_ps(offset, OfColumns(first, count, [](const RowScales& of) { return float(of.Zero(0)); }));
    for (int64_t r = 0; r < std::min(height, job.rows - row); ++r) {
      __m512 sums = gemm::SumOf16(total + r * kColumns);
      if (row_sums) sums = _mm512_sub_ps(sums, _mm512_mul_ps(offset, _mm512_set1_ps(row_sums[row + r])));
      Store(row + r, first, count, _mm512_mul_ps(sums, scale));
    }
  }
  // Lane c = the value of column first + c, 0 past the last.
  template <class Value>
  LZ_AVX512BF16_VBMI_INLINE __m512 OfColumns(int64_t first, int64_t count, const Value& value) const {
    alignas(64) float values[kColumns] = {};
    for (int64_t c = 0; c < count; ++c) values[c] = value(RowScales(job, first + c));
    return _mm512_load_ps(values);
  }
  LZ_AVX512BF16_VBMI_INLINE __m512 Scales(int64_t first, int64_t count) const {
    if (job.scale_type == DType::kF32 && job.own_scales && job.scale_row_bytes == sizeof(float))
      return _mm512_maskz_loadu_ps(MaskOf(count), reinterpret_cast<const float*>(job.scale_data) + first);
    return OfColumns(first, count, [](const RowScales& of) { return of.Scale(0); });
  }
  LZ_AVX512BF16_VBMI_INLINE __m512 Factors(int64_t first, int64_t count) const {
    if (job.outer_row == 0) return _mm512_set1_ps(*job.outer);
    return OfColumns(first, count, [](const RowScales& of) { return of.factor(); });
  }
  static __mmask16 MaskOf(int64_t count) { return __mmask16((1u << count) - 1); }
  LZ_AVX512BF16_VBMI void Store(int64_t row, int64_t first, int64_t count, __m512 v) const {
    const lz_tensor &output = job.args->tensors[kOutput], &bias = job.args->tensors[kBias];
    const __mmask16 mask = MaskOf(count);
    v = gemm::WithExactSums(
        v, mask, [&](int64_t c, float found) { return quantized::ExactSums(job.args).At(row, first + c, found); });
    const int64_t at = rows[row] + first;
    if (DTypeOf(output) == DType::kF32) {
      if (Given(bias)) v = _mm512_add_ps(v, _mm512_maskz_loadu_ps(mask, Data<const float>(bias) + first));
      float* to = Data<float>(output) + at;
      return count == kColumns ? _mm512_storeu_ps(to, v) : _mm512_mask_storeu_ps(to, mask, v);
    }
    const bool f16 = DTypeOf(output) == DType::kF16;
    if (Given(bias)) {
      const __m256i bits = _mm256_maskz_loadu_epi16(mask, Data<const uint16_t>(bias) + first);
      const __m512 as_bf16 = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
      v = _mm512_add_ps(v, f16 ? _mm512_cvtph_ps(bits) : as_bf16);
    }
    const __m256i halves = f16 ? _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT) : (__m256i)_mm512_cvtneps_pbh(v);
    uint16_t* to = Data<uint16_t>(output) + at;
    if (count == kColumns) return _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), halves);
    _mm256_mask_storeu_epi16(to, mask, halves);
  }
};

int64_t PaddedRows(const Job& job) {
  const int64_t rest = job.rows % TileRows(job);
  return job.rows - rest + Height(job, rest);
}
uint64_t InputBytes(const Job& job) { return uint64_t(PaddedRows(job) * job.padded() * job.x_bytes()); }
bool WantsSums(const Job& job) {
  return job.scaling == Scaling::kFloatsAndOffsets || (job.scaling == Scaling::kRow && (job.offset != 0 || job.zeros));
}
uint64_t WorkspaceOf(const Job& job) {
  const int64_t sums = WantsSums(job) ? PaddedRows(job) * (job.steps() * job.sets() * 16 + 1) : 0;
  return InputBytes(job) + uint64_t(sums) * sizeof(float);
}
uint64_t Workspace(const lz_kernel_args* args) { return WorkspaceOf(Job(args)); }

int32_t Launch(const lz_kernel_args* args) {
  Job job(args);
  if (args->workspace_bytes < WorkspaceOf(job)) return 1;
  if (job.rows == 0 || job.n == 0) return 0;
  job.x = args->workspace;
  float* row_sums = nullptr;
  if (WantsSums(job)) {
    job.sums = reinterpret_cast<float*>(static_cast<char*>(args->workspace) + InputBytes(job));
    if (job.scaling == Scaling::kRow) row_sums = job.sums + PaddedRows(job) * job.steps() * job.sets() * 16;
  }
  for (int64_t row = 0; row < job.rows; row += TileRows(job)) {
    const int64_t height = Height(job, job.rows - row);
    job.floats ? PutTile<float>(job, row, height) : PutTile<uint16_t>(job, row, height);
    if (row_sums) SumRows(job, row, height, row_sums + row);
  }
  const RowOffsets output(args->tensors[kOutput]);
  const Tile tile{job, output, row_sums};
  const int64_t tiles = (job.n + kColumns - 1) / kColumns;
  // 64k weights take about 2 us on one core.
  ParallelFor(args, tiles, 65536 / (kColumns * (job.k + 16) * job.rows) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t row = 0; row < job.rows; row += TileRows(job)) {
        const int64_t height = Height(job, job.rows - row), first = t * kColumns;
        const RunColumns run = job.floats ? RunFor<float>(job, height) : RunFor<uint16_t>(job, height);
        tile.Run(run, row, height, first, std::min(kColumns, job.n - first));
      }
    }
  });
  return 0;
}

constexpr auto kConstraints = std::to_array<Constraint>({
    {"device.isa", Rel::kHasBits, kIsaAvx512 | kIsaAvx512Bf16 | kIsaAvx512Vbmi},
    {"group", Rel::kMultipleOf, 16, {}, ReasonCode::kQuantGranularity},
});
// Weights are decoded once for each tile of rows: with more tiles hwy.mlp.linear.quantized.gemm is faster.
constexpr auto kManyRows = std::to_array<Constraint>({{"rows", Rel::kGt, 64}});
constexpr auto kManyFloatRows = std::to_array<Constraint>({
    {"rows", Rel::kGt, 8},
    {"dtype", Rel::kNe, int64_t(DType::kBF16)},
});
constexpr auto kPreferences = std::to_array<Preference>(
    {{.when = kManyRows, .priority = kAfterOthers}, {.when = kManyFloatRows, .priority = kAfterOthers}});
constexpr std::array kFamily = {CpuSpec("x86.mlp.linear.quantized.avx512bf16", &Launch,
                                        {.operation = "mlp.linear.quantized",
                                         .constraints = kConstraints,
                                         .accepts = kAcceptsAll,
                                         .priority = 85,
                                         .preferences = kPreferences,
                                         .workspace = &Workspace})};
}  // namespace
LZ_KERNEL_FAMILY = kFamily;

#else  // not x86-64
LZ_KERNEL_FAMILY = {};
#endif
