// Linear in bf16 with weights in any quantised format for few rows, with AVX512-BF16's dot products: codes become bf16
// by look-ups in registers, exactly; scales multiply the FP32 sums of their groups.
//   input  [..., k]  bf16, last dim dense              weight [n, k / (1 or 2)]  last dim dense
//   packed [n, k / 2] u8, optional, as mlp.linear.prepack orders it, read instead of weight
//   weight_scale, zero_point, tensor_scale: as the contract has them, groups of a multiple of 16 values
//   bias   [n]       bf16, optional                    output [..., n]
// Workspace: the input in the order in which codes come out, and its sums. Deterministic. Source: own. VDPBF16PS takes
// denormals for zero. A sum that is not an ordinary number is taken again as the definition has it.
#include "core/kernel.h"
#include "platform/device.h"

#if defined(__x86_64__)
#include <algorithm>
#include <cmath>

#include "kernels/launch.h"
#include "kernels/mlp/linear/quantized/exact.h"
#include "kernels/mlp/linear/quantized/x86_codes.h"

namespace {
using namespace lz;
using namespace lz::ops;
using namespace lz::ops::mlp_linear_quantized;
using quantized::Codes;
using quantized::PairScales;
using quantized::Tables;

constexpr int64_t kTileRows = 8;    // that share a decoded weight
constexpr int64_t kColumns = 4;     // whose sums are folded at once
constexpr int64_t kBlock = 128;     // values of the input that are put in order at a time
constexpr int64_t kUnit = 16;       // values that always share a scale
constexpr int64_t kChunk = 128;     // scales that are converted at a time
constexpr int64_t kPairChunk = 64;  // of one byte

enum class Scaling : uint8_t { kRow, kFloats, kFloatsAndOffsets, kPairs };

// What all columns of a call share.
struct Job {
  explicit Job(const lz_kernel_args* args);
  int64_t padded() const { return (k + kBlock - 1) / kBlock * kBlock; }
  int64_t steps() const { return padded() / step; }
  int64_t sets() const { return split ? 2 : 1; }

  const lz_kernel_args* args;
  int64_t format, rows, n, k;
  Codes codes;
  Scaling scaling;
  int64_t step;                            // values of 64 bytes
  int64_t group;                           // values under one scale, as the steps take them
  int64_t stored_group;                    // as they lie
  int64_t scales_of_step, steps_of_scale;  // one of them is 1
  int64_t scales;                          // of a row, as the steps take them
  int64_t chunk;                           // steps whose scales are converted at a time
  int64_t row_block;                       // rows of weights under one row of scales
  bool direct;                             // scales are read as they lie
  DType scale_type;
  const char* scale_data;
  int64_t scale_bytes, scale_row_bytes;  // from one to the next
  const int32_t* zeros = nullptr;        // zero points
  int64_t zero_stride = 0, zero_row = 0;
  const float* outer = nullptr;  // scales of the tensor or its rows
  int64_t outer_row = 0;
  bool split;        // packed half bytes whose 16 values have a scale of their own
  float offset = 0;  // what codes count from, beside the zero point
  int flip = 0;      // see Decoder
  const uint8_t* weight;
  int64_t weight_stride;
  alignas(64) int32_t lanes[2][16];  // where each lane's scale is among those of a step; [1]: of the second set
  // Of each tile of rows: the input in the order of the codes, and of offsets the sums of the values of a lane.
  uint16_t* x = nullptr;  // [steps][vectors][height][32]
  float* sums = nullptr;  // [steps][sets][height][16]
};

Job::Job(const lz_kernel_args* a) : args(a), format(a->scalars[kFormat].value.i) {
  const lz_tensor &input = a->tensors[kInput], &scale = a->tensors[kWeightScale];
  const bool packed = Given(a->tensors[kPacked]);
  const lz_tensor& stored = a->tensors[packed ? kPacked : kWeight];
  rows = NumRows(input), n = a->tensors[kWeight].shape[0], k = input.shape[input.ndim - 1];
  weight = Data<const uint8_t>(stored), weight_stride = stored.strides[0];
  const bool integer = IsInteger(format);
  codes = kQuantInfo[size_t(format)].pack == 2 ? (packed ? Codes::kPackedNibbles : Codes::kNibbles)
          : integer                            ? Codes::kIntegers
                                               : Codes::kFloats;
  step = quantized::IsHalfByte(codes) ? 128 : 64;
  if (codes == Codes::kIntegers) offset = format == kUInt8 ? -127.5f : 0.5f, flip = format == kUInt8 ? 128 : 0;
  if (format == kUInt4) offset = -8;
  group = stored_group = std::max<int64_t>(1, scale.shape[1] > 0 ? k / scale.shape[1] : k);
  row_block = scale.shape[0] > 0 ? std::max<int64_t>(1, n / scale.shape[0]) : 1;
  const bool divides = step % group == 0 || group % step == 0;
  const lz_tensor &zero = a->tensors[kZeroPoint], &outer_scale = a->tensors[kTensorScale];
  scale_type = DTypeOf(scale);
  scale_data = Data<const char>(scale);
  scale_bytes = scale.strides[1] * ByteSize(scale_type), scale_row_bytes = scale.strides[0] * ByteSize(scale_type);
  if (Given(zero)) zeros = Data<const int32_t>(zero), zero_stride = zero.strides[1], zero_row = zero.strides[0];
  if (Given(outer_scale)) {
    outer = Data<const float>(outer_scale);
    if (outer_scale.ndim > 0 && outer_scale.shape[0] > 1) outer_row = outer_scale.strides[0];
  }
  const bool dense = divides && (scale.strides[1] == 1 || scale.shape[1] == 1);
  scaling = scale.shape[1] == 1                                   ? Scaling::kRow
            : offset != 0 || zeros                                ? Scaling::kFloatsAndOffsets
            : ByteSize(scale_type) == 1 && dense && group <= step ? Scaling::kPairs
                                                                  : Scaling::kFloats;
  direct = scaling == Scaling::kPairs ||
           (scale_type == DType::kF32 && dense && (!zeros || zero.strides[1] == 1 || zero.shape[1] == 1));
  if (!divides && scaling != Scaling::kRow) group = kUnit;
  split = codes == Codes::kPackedNibbles && group == kUnit && scaling != Scaling::kRow;
  scales_of_step = std::max<int64_t>(1, step / group), steps_of_scale = std::max<int64_t>(1, group / step);
  scales = (k + group - 1) / group;
  for (int64_t lane = 0; lane < 16; ++lane) {
    const int64_t value = codes == Codes::kNibbles ? lane * 8 : lane / 4 * (codes == Codes::kPackedNibbles ? 32 : 16);
    for (int64_t set = 0; set < 2; ++set) lanes[set][lane] = int32_t((value + set * kUnit) / group);
  }
  chunk = (scaling == Scaling::kPairs ? kPairChunk : kChunk) / scales_of_step * steps_of_scale;
}

// Scales of one row of weights after the other.
struct RowScales {
  RowScales(const Job& job, int64_t row) : job(job), row(row), in_block(row % job.row_block) {
    const int64_t at = row / job.row_block;
    data = job.scale_data + at * job.scale_row_bytes;
    zeros = job.zeros ? job.zeros + at * job.zero_row : nullptr;
  }
  void Next() {
    ++row;
    if (++in_block < job.row_block) return;
    in_block = 0, data += job.scale_row_bytes, zeros += job.zero_row;
  }
  float factor() const { return job.outer ? job.outer[row * job.outer_row] : 1.0f; }
  float Scale(int64_t i) const {
    const char* at = data + i * job.scale_bytes;
    switch (job.scale_type) {
      case DType::kF32: return *reinterpret_cast<const float*>(at);
      case DType::kF16: return F16ToFloat(*reinterpret_cast<const uint16_t*>(at));
      case DType::kBF16: return BF16ToFloat(*reinterpret_cast<const uint16_t*>(at));
      case DType::kF8E4M3: return F8E4M3ToFloat(uint8_t(*at));
      default: return F8E8M0ToFloat(uint8_t(*at));
    }
  }
  int32_t Zero(int64_t i) const { return job.zeros ? zeros[i * job.zero_stride] : 0; }
  // Of groups from `first` on, as the steps take them.
  void Convert(int64_t first, int64_t count, float* scales, int32_t* to) const {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t at = job.stored_group == job.group ? first + i : (first + i) * job.group / job.stored_group;
      scales[i] = Scale(at);
      if (to) to[i] = Zero(at);
    }
  }

  const Job& job;
  int64_t row, in_block;
  const char* data;
  const int32_t* zeros;
};

// One column's codes, and the rows that they meet.
template <Codes kCodes>
struct Operands {
  quantized::Decoder<kCodes> decode;
  const uint8_t* codes;
  int64_t bytes;
  const uint16_t* x;
  const float* sums;
};

// Sums of columns for R rows, in lanes.
template <Codes kCodes, Scaling kScaling, bool kSplit, int R>
struct Columns {
  static constexpr int kVectors = quantized::VectorsOf(kCodes), kSets = kSplit ? 2 : 1;
  static constexpr bool kOffsets = kScaling == Scaling::kFloatsAndOffsets;

  // total[r] += step `s`, whose scales and offsets are given. kRest: not all of its 64 bytes are the column's.
  template <bool kRest>
  LZ_AVX512BF16_VBMI_INLINE static void Step(const Operands<kCodes>& of, int64_t s, const __m512* scale,
                                             const __m512* offset, __m512* total) {
    const uint8_t* at = of.codes + s * 64;
    __m512i codes =
        kRest ? _mm512_maskz_loadu_epi8((__mmask64{1} << (of.bytes - s * 64)) - 1, at) : _mm512_loadu_si512(at);
    asm("" : "+v"(codes));  // the compiler would load them anew for each use: a core has one load of 64 bytes a cycle
    __m512bh w[kVectors];
    of.decode(codes, w);
    const uint16_t* x = of.x + s * kVectors * R * 32;
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
      for (int set = 0; set < kSets; ++set) {
        __m512 part = _mm512_setzero_ps();
#pragma GCC unroll 4
        for (int v = set; v < kVectors; v += kSets)
          part = _mm512_dpbf16_ps(part, w[v], (__m512bh)_mm512_loadu_si512(x + (v * R + r) * 32));
        if constexpr (kScaling == Scaling::kRow) {
          total[r] = _mm512_add_ps(total[r], part);
          continue;
        }
        if constexpr (kOffsets)
          part = _mm512_fnmadd_ps(offset[set], _mm512_loadu_ps(of.sums + ((s * kSets + set) * R + r) * 16), part);
        total[r] = _mm512_fmadd_ps(part, scale[set], total[r]);
      }
    }
  }
  // body(s, rest) for steps [from, to) of a column.
  template <class Body>
  LZ_AVX512BF16_VBMI_INLINE static void ForSteps(int64_t bytes, int64_t from, int64_t to, const Body& body) {
    const int64_t whole = std::min(to, bytes / 64);
    for (int64_t s = from; s < whole; ++s) body(s, std::false_type());
    if (whole < to) body(whole, std::true_type());
  }

  // Scales of one byte, at most a step's values under each.
  LZ_AVX512BF16_VBMI_INLINE static void Pairs(const Job& job, const RowScales& scales, const Operands<kCodes>& of,
                                              const __m512i* lanes, __m512* total) {
    const int64_t steps = (of.bytes + 63) / 64;
    PairScales pairs(job.format != kNVFP4);
    const __m512i next = _mm512_set1_epi8(char(job.scales_of_step));
    for (int64_t from = 0; from < steps; from += job.chunk) {
      const int64_t first = from * job.scales_of_step, left = job.scales - first;
      pairs.Load(reinterpret_cast<const uint8_t*>(scales.data) + first,
                 left >= 64 ? ~__mmask64{0} : (__mmask64{1} << left) - 1);
      __m512i index[2] = {PairScales::IndexOf(lanes[0]), PairScales::IndexOf(lanes[1])};
      ForSteps(of.bytes, from, std::min(from + job.chunk, steps), [&](int64_t s, auto rest) LZ_AVX512BF16_VBMI_LAMBDA {
        __m512 scale[2];
#pragma GCC unroll 2
        for (int set = 0; set < kSets; ++set) {
          scale[set] = pairs(index[set]);
          index[set] = _mm512_add_epi8(index[set], next);
        }
        Step<rest>(of, s, scale, nullptr, total);
      });
    }
  }

  LZ_AVX512BF16_VBMI_INLINE static void Floats(const Job& job, const RowScales& scales, const Operands<kCodes>& of,
                                               const __m512i* lanes, __m512* total) {
    const int64_t steps = (of.bytes + 63) / 64;
    float converted[kChunk];
    int32_t converted_zeros[kOffsets ? kChunk : 1];
    const __m512 base = _mm512_set1_ps(job.offset);
    for (int64_t from = 0; from < steps; from += job.chunk) {
      const int64_t first = from / job.chunk * kChunk, size = std::min(kChunk, job.scales - first);
      const float* at = reinterpret_cast<const float*>(scales.data) + first;
      const int32_t* zeros = scales.zeros + first;
      if (!job.direct) {
        scales.Convert(first, size, converted, kOffsets ? converted_zeros : nullptr);
        at = converted, zeros = converted_zeros;
      }
      int64_t uses = job.steps_of_scale, left = size;
      __m512 scale[2], offset[2] = {base, base};
      ForSteps(of.bytes, from, std::min(from + job.chunk, steps), [&](int64_t s, auto rest) LZ_AVX512BF16_VBMI_LAMBDA {
        if (uses == job.steps_of_scale) {
          const int64_t count = rest ? std::min(left, job.scales_of_step) : job.scales_of_step;
          const __mmask16 mask = __mmask16((1u << count) - 1);
          const __m512 some = _mm512_maskz_loadu_ps(mask, at);
#pragma GCC unroll 2
          for (int set = 0; set < kSets; ++set) scale[set] = _mm512_permutexvar_ps(lanes[set], some);
          if (kOffsets && job.zeros) {
            const __m512 from_zero = _mm512_add_ps(base, _mm512_cvtepi32_ps(_mm512_maskz_loadu_epi32(mask, zeros)));
#pragma GCC unroll 2
            for (int set = 0; set < kSets; ++set) offset[set] = _mm512_permutexvar_ps(lanes[set], from_zero);
          }
          uses = 0, at += count, zeros += count, left -= count;
        }
        ++uses;
        Step<rest>(of, s, scale, offset, total);
      });
    }
  }

  // out[c * kTileRows + r]: `columns` of them from `first` on.
  LZ_AVX512BF16_VBMI static void Run(const Job& job, int64_t first, int64_t columns, const uint16_t* x,
                                     const float* sums, __m512* out) {
    Operands<kCodes> of{{Tables::Of(job.format), job.flip}, nullptr, kVectors == 4 ? (job.k + 1) / 2 : job.k, x, sums};
    const __m512i lanes[2] = {_mm512_load_si512(job.lanes[0]), _mm512_load_si512(job.lanes[1])};
    RowScales scales(job, first);
    for (int64_t c = 0; c < columns; ++c, scales.Next()) {
      of.codes = job.weight + (first + c) * job.weight_stride;
      __m512 total[R];
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) total[r] = _mm512_setzero_ps();
      if constexpr (kScaling == Scaling::kRow) {
        ForSteps(of.bytes, 0, (of.bytes + 63) / 64,
                 [&](int64_t s, auto rest) LZ_AVX512BF16_VBMI_LAMBDA { Step<rest>(of, s, nullptr, nullptr, total); });
      } else if constexpr (kScaling == Scaling::kPairs) {
        Pairs(job, scales, of, lanes, total);
      } else {
        Floats(job, scales, of, lanes, total);
      }
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) out[c * kTileRows + r] = total[r];
    }
  }
};

using RunColumns = decltype(&Columns<Codes::kFloats, Scaling::kRow, false, 1>::Run);
template <Codes kCodes, Scaling kScaling, bool kSplit>
RunColumns ForRows(int64_t rows) {
  if (rows == 1) return &Columns<kCodes, kScaling, kSplit, 1>::Run;
  if (rows == 2) return &Columns<kCodes, kScaling, kSplit, 2>::Run;
  return rows <= 4 ? &Columns<kCodes, kScaling, kSplit, 4>::Run : &Columns<kCodes, kScaling, kSplit, 8>::Run;
}
template <Codes kCodes, bool kSplit = false>
RunColumns ForScaling(Scaling scaling, int64_t rows) {
  switch (scaling) {
    case Scaling::kRow: return ForRows<kCodes, Scaling::kRow, false>(rows);
    case Scaling::kFloats: return ForRows<kCodes, Scaling::kFloats, kSplit>(rows);
    case Scaling::kFloatsAndOffsets: return ForRows<kCodes, Scaling::kFloatsAndOffsets, kSplit>(rows);
    default: return ForRows<kCodes, Scaling::kPairs, kSplit>(rows);
  }
}
RunColumns RunFor(const Job& job, int64_t rows) {
  switch (job.codes) {
    case Codes::kNibbles: return ForScaling<Codes::kNibbles>(job.scaling, rows);
    case Codes::kPackedNibbles:
      if (job.split) return ForScaling<Codes::kPackedNibbles, true>(job.scaling, rows);
      return ForScaling<Codes::kPackedNibbles>(job.scaling, rows);
    case Codes::kIntegers: return ForScaling<Codes::kIntegers>(job.scaling, rows);
    default: return ForScaling<Codes::kFloats>(job.scaling, rows);
  }
}

// Lane c = the sum of all lanes of v[c * stride].
LZ_AVX512BF16_VBMI_INLINE __m128 SumOfEach(const __m512* v, int64_t stride) {
  const __m512 a = v[0], b = v[stride], c = v[2 * stride], d = v[3 * stride];
  const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
  const __m512d low = _mm512_unpacklo_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd));
  const __m512d high = _mm512_unpackhi_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd));
  const __m512 sum = _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high));
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(sum), _mm512_extractf32x8_ps(sum, 1));
  return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

// Rows that are taken at once of `left`.
int64_t Height(int64_t left) { return left > 4 ? kTileRows : left > 2 ? 4 : left; }

// Puts rows [row, row + height) in the order of the codes, rows that are not there as zeros, and sums them.
LZ_AVX512BF16_VBMI void PutTile(const Job& job, int64_t row, int64_t height) {
  const lz_tensor& input = job.args->tensors[kInput];
  const quantized::Order& order = quantized::Order::Of(job.codes);
  uint16_t* x = job.x + row * job.padded();
  for (int64_t r = 0; r < height; ++r) {
    const bool given = row + r < job.rows;
    const uint16_t* from = Data<const uint16_t>(input) + (given ? RowOffset(input, row + r) : 0);
    for (int64_t i = 0; i < job.k; i += kBlock)
      order.Put(from + i, given ? job.k - i : 0, x + i * height + r * 32, height * 32);
  }
  if (!job.sums) return;
  float* sums = job.sums + row * job.steps() * job.sets() * 16;
  const __m512bh one = (__m512bh)_mm512_set1_epi16(0x3f80);
  const int64_t vectors = job.step / 32, sets = job.sets();
  for (int64_t i = 0; i < job.steps() * sets * height; ++i) {
    const int64_t r = i % height, set = i / height % sets, s = i / height / sets;
    __m512 sum = _mm512_setzero_ps();
    for (int64_t v = set; v < vectors; v += sets)
      sum = _mm512_dpbf16_ps(sum, (__m512bh)_mm512_loadu_si512(x + ((s * vectors + v) * height + r) * 32), one);
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
  const quantized::ExactSums& exact;
  const RowOffsets& rows;  // of the output
  const float* row_sums;   // of the input, for Scaling::kRow with offsets

  // At most kColumns from `first` on.
  LZ_AVX512BF16_VBMI void Run(RunColumns run, int64_t row, int64_t height, int64_t first, int64_t count) const {
    __m512 total[kColumns * kTileRows];
    alignas(16) float scale[kColumns] = {}, offset[kColumns] = {};
    run(job, first, count, job.x + row * job.padded(),
        job.sums ? job.sums + row * job.steps() * job.sets() * 16 : nullptr, total);
    RowScales scales(job, first);
    for (int64_t c = 0; c < count; ++c, scales.Next()) {
      const bool whole = job.scaling == Scaling::kRow && job.k > 0;
      scale[c] = whole ? scales.Scale(0) * scales.factor() : scales.factor();
      if (row_sums && whole) offset[c] = job.offset + float(scales.Zero(0));
    }
    for (int64_t c = count; c < kColumns; ++c) std::copy_n(total, kTileRows, total + c * kTileRows);
    for (int64_t r = 0; r < std::min(height, job.rows - row); ++r) {
      __m128 four = SumOfEach(total + r, kTileRows);
      if (row_sums) four = _mm_sub_ps(four, _mm_mul_ps(_mm_load_ps(offset), _mm_set1_ps(row_sums[row + r])));
      Store(row + r, first, count, _mm_mul_ps(four, _mm_load_ps(scale)));
    }
  }
  LZ_AVX512BF16_VBMI void Store(int64_t row, int64_t first, int64_t count, __m128 four) const {
    const lz_tensor &output = job.args->tensors[kOutput], &bias = job.args->tensors[kBias];
    const __mmask8 mask = __mmask8((1u << count) - 1);
    const __mmask8 rest = mask & ~Ordinary(four);
    if (rest) {
      alignas(16) float values[kColumns];
      _mm_store_ps(values, four);
      for (int64_t c = 0; c < count; ++c)
        if (rest >> c & 1) values[c] = float(exact.At(row, first + c));
      four = _mm_load_ps(values);
    }
    if (Given(bias)) {
      const __m128i bits = _mm_cvtepu16_epi32(_mm_maskz_loadu_epi16(mask, Data<const uint16_t>(bias) + first));
      four = _mm_add_ps(four, _mm_castsi128_ps(_mm_slli_epi32(bits, 16)));
    }
    _mm_mask_storeu_epi16(Data<uint16_t>(output) + rows[row] + first, mask, (__m128i)_mm_cvtneps_pbh(four));
  }
  // Lanes with 0 or a number far from where a product or a part of the sum may have left FP32.
  LZ_AVX512BF16_VBMI_INLINE static __mmask8 Ordinary(__m128 v) {
    const __m128i bits = _mm_and_si128(_mm_castps_si128(v), _mm_set1_epi32(0x7fffffff));
    const __m128i low = _mm_set1_epi32((127 - 100) << 23), width = _mm_set1_epi32(200 << 23);
    return _mm_cmplt_epu32_mask(_mm_sub_epi32(bits, low), width) | _mm_testn_epi32_mask(bits, bits);
  }
};

int64_t PaddedRows(const Job& job) {
  const int64_t rest = job.rows % kTileRows;
  return job.rows - rest + Height(rest);
}
uint64_t InputBytes(const Job& job) { return uint64_t(PaddedRows(job) * job.padded()) * sizeof(uint16_t); }
bool WantsSums(const Job& job) {
  return job.scaling == Scaling::kFloatsAndOffsets || (job.scaling == Scaling::kRow && (job.offset != 0 || job.zeros));
}
uint64_t Workspace(const lz_kernel_args* args) {
  const Job job(args);
  const int64_t sums = WantsSums(job) ? PaddedRows(job) * (job.steps() * job.sets() * 16 + 1) : 0;
  return InputBytes(job) + uint64_t(sums) * sizeof(float);
}

int32_t Launch(const lz_kernel_args* args) {
  Job job(args);
  if (args->workspace_bytes < Workspace(args)) return 1;
  if (job.rows == 0 || job.n == 0) return 0;
  job.x = static_cast<uint16_t*>(args->workspace);
  float* row_sums = nullptr;
  if (WantsSums(job)) {
    job.sums = reinterpret_cast<float*>(static_cast<char*>(args->workspace) + InputBytes(job));
    if (job.scaling == Scaling::kRow) row_sums = job.sums + PaddedRows(job) * job.steps() * job.sets() * 16;
  }
  for (int64_t row = 0; row < job.rows; row += kTileRows) {
    const int64_t height = Height(job.rows - row);
    PutTile(job, row, height);
    if (row_sums) SumRows(job, row, height, row_sums + row);
  }
  const quantized::ExactSums exact(args);
  const RowOffsets output(args->tensors[kOutput]);
  const Tile tile{job, exact, output, row_sums};
  const int64_t tiles = (job.n + kColumns - 1) / kColumns;
  // 64k weights take about 2 us on one core.
  ParallelFor(args, tiles, 65536 / (kColumns * (job.k + 16) * job.rows) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t row = 0; row < job.rows; row += kTileRows) {
        const int64_t height = Height(job.rows - row), first = t * kColumns;
        tile.Run(RunFor(job, height), row, height, first, std::min(kColumns, job.n - first));
      }
    }
  });
  return 0;
}

constexpr auto kConstraints = std::to_array<Constraint>({
    {"device.isa", Rel::kHasBits, kIsaAvx512 | kIsaAvx512Bf16 | kIsaAvx512Vbmi},
    {"rows", Rel::kLe, 64},
    {"group", Rel::kMultipleOf, 16, {}, ReasonCode::kQuantGranularity},
});
constexpr auto kFamily = std::to_array<KernelSpec>({
    {.id = "x86.mlp.linear.quantized.avx512bf16",
     .operation = "mlp.linear.quantized",
     .dtypes = Mask(DType::kBF16),
     .constraints = kConstraints,
     .accepts = kAcceptsAll,
     .strides = Strides::kLastDimDense,
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
