// Linear with packed GGUF weights for any number of rows, CPU SIMD: lanes are output columns, nothing is summed across.
//   input  [..., k]  f32|f16|bf16, last dim dense     packed [ceil(n / 16), bytes] u8, as linear_gguf_prepack has it
//   bias   [n]       dtype of input, optional          output [..., n], last dim dense
// Workspace: one block record for each row and 32 values of k. Deterministic. Source: own. A block's value is
// d * (code - zero) + m, so its part of a sum is d * (sum of code * a - zero * sum of a) + m * sum of a: the codes are
// summed as integers (activations=int8; exact) or in FP32, scales are applied to 32 values (q6_k: 16) at once.
#define HWY_WANT_AVX3_DL 1  // its dot products of bytes
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/mlp/linear/gguf/hwy.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/kernel.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/launch.h"
#include "kernels/mlp/linear/codes.h"
#include "kernels/mlp/linear/gguf/exact.h"
#include "kernels/simd.h"
#include "ops/mlp/linear/gguf.h"

HWY_BEFORE_NAMESPACE();
namespace lz {
namespace HWY_NAMESPACE {
namespace {
using namespace lz::ops::mlp_linear_gguf;

using DF = hn::CappedTag<float, kGroupRows>;
using DI = hn::Rebind<int32_t, DF>;
using DU8 = hn::Repartition<uint8_t, DF>;
using VF = hn::Vec<DF>;
using VI = hn::Vec<DI>;
constexpr int kLanes = int(hn::MaxLanes(DF()));
constexpr int kVectors = int(kGroupRows) / kLanes;
constexpr int kMaxTile = 4;  // rows of input at once

// 32 values of one row of input, and their sums; sum1 is of the last 16.
struct IntBlock {
  int32_t quads[8];  // four int8 each
  float d;
  int32_t sum, sum0, sum1;  // in units of d
};
struct FloatBlock {
  float x[32];
  float sum, sum0, sum1, unused;
};

template <class T>
HWY_INLINE void MakeBlock(const T* x, FloatBlock* block) {
  float sums[2];
  for (int half = 0; half < 2; ++half) {
    VF sum = hn::Zero(DF());
    for (int i = 16 * half; i < 16 * half + 16; i += kLanes) {
      const VF v = LoadF32(DF(), x + i);
      hn::StoreU(v, DF(), block->x + i);
      sum = hn::Add(sum, v);
    }
    sums[half] = hn::GetLane(hn::SumOfLanes(DF(), sum));
  }
  block->sum0 = sums[0], block->sum1 = sums[1], block->sum = sums[0] + sums[1];
}
template <class T>
HWY_INLINE void MakeBlock(const T* x, IntBlock* block) {
  VF largest = hn::Zero(DF());
  bool finite = true;
  for (int i = 0; i < 32; i += kLanes) {
    const VF v = LoadF32(DF(), x + i);
    finite = finite && hn::AllTrue(DF(), hn::IsFinite(v));
    largest = hn::Max(largest, hn::Abs(v));
  }
  const float amax = finite ? hn::GetLane(hn::MaxOfLanes(DF(), largest)) : 0.0f;
  const VF inverse = hn::Set(DF(), amax < kLeastActivation ? 0.0f : 127.0f / amax), zero = hn::Zero(DF());
  const hn::Rebind<int8_t, DF> d8;
  auto* codes = reinterpret_cast<int8_t*>(block->quads);
  int sums[2];
  for (int half = 0; half < 2; ++half) {
    VI sum = hn::Zero(DI());
    for (int i = 16 * half; i < 16 * half + 16; i += kLanes) {
      const VF v = finite ? hn::Mul(LoadF32(DF(), x + i), inverse) : zero;
      const VI code = hn::NearestInt(v);  // ties to even
      hn::StoreU(hn::DemoteTo(d8, code), d8, codes + i);
      sum = hn::Add(sum, code);
    }
    sums[half] = hn::GetLane(hn::SumOfLanes(DI(), sum));
  }
  block->d = finite ? amax / 127.0f : NAN;
  block->sum0 = sums[0], block->sum1 = sums[1], block->sum = sums[0] + sums[1];
}

// sum + the dot product of each lane's four unsigned bytes with four signed ones.
HWY_INLINE VI AddDot4(VI sum, hn::Vec<DU8> codes, int32_t quad) {
#if HWY_TARGET == HWY_AVX3_DL
  const VI a =
      hn::Set(DI(), quad);  // Highway's compile flags of this target lack avx512vnni, its test of the CPU does not
  asm("vpdpbusd %2, %1, %0" : "+v"(sum.raw) : "v"(codes.raw), "v"(a.raw));
  return sum;
#elif HWY_ARCH_X86
  const hn::Repartition<int16_t, DF> d16;  // bytes 0 and 2, 1 and 3: products of pairs add within a lane
  const auto a = hn::BitCast(d16, hn::Set(DI(), quad)), c = hn::BitCast(d16, codes);
  const hn::RebindToUnsigned<decltype(d16)> du16;
  const auto even = hn::And(c, hn::Set(d16, 255)), odd = hn::BitCast(d16, hn::ShiftRight<8>(hn::BitCast(du16, c)));
  VI unused = hn::Zero(DI());
  sum = hn::ReorderWidenMulAccumulate(DI(), even, hn::ShiftRight<8>(hn::ShiftLeft<8>(a)), sum, unused);
  return hn::ReorderWidenMulAccumulate(DI(), odd, hn::ShiftRight<8>(a), sum, unused);
#else
  const VI c = hn::BitCast(DI(), codes), byte = hn::Set(DI(), 255);
  sum = hn::Add(sum, hn::Mul(hn::And(c, byte), hn::Set(DI(), int8_t(quad))));
  sum = hn::Add(sum, hn::Mul(hn::And(hn::ShiftRight<8>(c), byte), hn::Set(DI(), int8_t(quad >> 8))));
  sum = hn::Add(sum, hn::Mul(hn::And(hn::ShiftRight<16>(c), byte), hn::Set(DI(), int8_t(quad >> 16))));
  return hn::Add(sum, hn::Mul(hn::And(hn::ShiftRight<24>(c), byte), hn::Set(DI(), int8_t(quad >> 24))));
#endif
}

// Codes times activations of a part of a block: what is summed, and what it adds to a total. `sum`: of the activations;
// codes that count from `zero` may cancel with it, so integers are subtracted as such.
struct IntSum {
  using Block = IntBlock;
  VI v;
  HWY_INLINE void Clear() { v = hn::Zero(DI()); }
  // Four values of k, one byte of a lane each.
  HWY_INLINE void Add(hn::Vec<DU8> codes, const IntBlock& a, int quad) { v = AddDot4(v, codes, a.quads[quad]); }
  HWY_INLINE VF AddFrom(int zero, VF d, int32_t sum, const IntBlock& a, VF total) const {
    const VF value = hn::ConvertTo(DF(), hn::Sub(v, hn::Set(DI(), zero * sum)));
    return hn::MulAdd(hn::Mul(d, value), hn::Set(DF(), a.d), total);  // value * a.d may leave f32
  }
  HWY_INLINE VF AddOffset(VF d, VF m, int32_t sum, const IntBlock& a, VF total) const {
    const VF value = hn::MulAdd(m, hn::Set(DF(), float(sum)), hn::Mul(d, hn::ConvertTo(DF(), v)));
    return hn::MulAdd(value, hn::Set(DF(), a.d), total);
  }
};
struct FloatSum {
  using Block = FloatBlock;
  VF v;
  HWY_INLINE void Clear() { v = hn::Zero(DF()); }
  HWY_INLINE void Add(hn::Vec<DU8> codes, const FloatBlock& a, int quad) {
    const VI four = hn::BitCast(DI(), codes), byte = hn::Set(DI(), 255);
    v = hn::MulAdd(hn::ConvertTo(DF(), hn::And(four, byte)), hn::Set(DF(), a.x[4 * quad]), v);
    v = hn::MulAdd(hn::ConvertTo(DF(), hn::And(hn::ShiftRight<8>(four), byte)), hn::Set(DF(), a.x[4 * quad + 1]), v);
    v = hn::MulAdd(hn::ConvertTo(DF(), hn::And(hn::ShiftRight<16>(four), byte)), hn::Set(DF(), a.x[4 * quad + 2]), v);
    const hn::RebindToUnsigned<DI> du;
    const VI last = hn::BitCast(DI(), hn::ShiftRight<24>(hn::BitCast(du, four)));
    v = hn::MulAdd(hn::ConvertTo(DF(), last), hn::Set(DF(), a.x[4 * quad + 3]), v);
  }
  HWY_INLINE VF AddFrom(int zero, VF d, float sum, const FloatBlock&, VF total) const {
    return hn::MulAdd(d, hn::MulAdd(hn::Set(DF(), float(-zero)), hn::Set(DF(), sum), v), total);
  }
  HWY_INLINE VF AddOffset(VF d, VF m, float sum, const FloatBlock&, VF total) const {
    return hn::MulAdd(m, hn::Set(DF(), sum), hn::MulAdd(d, v, total));
  }
};

HWY_INLINE VF Halves(const uint8_t* p) { return LoadF32(DF(), reinterpret_cast<const F16*>(p)); }
HWY_INLINE VF Bytes(const uint8_t* p) {
  const hn::Rebind<uint8_t, DF> d8;
  return hn::ConvertTo(DF(), hn::PromoteTo(DI(), hn::LoadU(d8, p)));
}
HWY_INLINE VF SignedBytes(const uint8_t* p) {
  const hn::Rebind<int8_t, DF> d8;
  return hn::ConvertTo(DF(), hn::PromoteTo(DI(), hn::LoadU(d8, reinterpret_cast<const int8_t*>(p))));
}

// Codes in a register. With 16 lanes the compiler would load them anew for each use, and loads bound the rest.
HWY_INLINE hn::Vec<DU8> LoadCodes(const uint8_t* p) {
  auto codes = hn::LoadU(DU8(), p);
#if HWY_TARGET <= HWY_AVX3
  asm("" : "+v"(codes.raw));
#endif
  return codes;
}

#if HWY_TARGET <= HWY_AVX3
// A lane's eight codes of four bits by look-up: its index is the lowest four bits, so that nothing is masked. Few rows
// have two sums for each half of a block: a look-up does not wait for the one before the last.
template <int M>
constexpr int kNibbleChains = M <= 2 ? 4 : 2;
template <int M>
HWY_INLINE void AddNibbles(hn::Vec<DU8> codes, int part, const FloatBlock* const* a, int64_t block,
                           VF (*sums)[kNibbleChains<M>]) {
  const VF meaning = hn::Iota(DF(), 0);
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    const __m512i index = i ? _mm512_srli_epi32(codes.raw, unsigned(4 * i)) : codes.raw;
    const VF w{_mm512_permutexvar_ps(index, meaning.raw)};
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      VF& sum = sums[m][i % kNibbleChains<M>];
      sum = hn::MulAdd(w, hn::Set(DF(), a[m][block].x[i % 2 * 16 + 4 * part + i / 2]), sum);
    }
  }
}
// sums: those of a block.
template <int M>
HWY_INLINE void SumNibbles(const uint8_t* p, const FloatBlock* const* a, int64_t block, FloatSum (*sums)[2]) {
  constexpr int kChains = kNibbleChains<M>;
  VF parts[M][kChains];
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 4
    for (int chain = 0; chain < kChains; ++chain) parts[m][chain] = hn::Zero(DF());
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) AddNibbles<M>(LoadCodes(p + c * 64), c, a, block, parts);
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m)
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half)
      sums[m][half].v = kChains == 2 ? parts[m][half] : hn::Add(parts[m][half], parts[m][half + kChains - 2]);
}
#endif

// One vector of a group's columns: codes at `p`, which is the vector's first byte of the block's first part.
template <int F, class Sum, int M>
HWY_INLINE void SumCodes(const uint8_t* p, const typename Sum::Block* const* a, int64_t block, Sum (*sums)[2]) {
  const DU8 du8;
  if constexpr (F == kQ8_0) {
#pragma GCC unroll 8
    for (int c = 0; c < 8; ++c) {
      const auto codes = hn::LoadU(du8, p + c * 64);
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) sums[m][c / 4].Add(codes, a[m][block], c);
    }
    return;
  }
#if HWY_TARGET <= HWY_AVX3
  if constexpr (std::is_same_v<Sum, FloatSum> && F != kQ6_K) {
    SumNibbles<M>(p, a, block, sums);
    return;
  }
#endif
  hn::Vec<DU8> high[2];
  if constexpr (F == kQ6_K) high[0] = LoadCodes(p + 256), high[1] = LoadCodes(p + 320);
  const auto low_bits = hn::Set(du8, 15), two_bits = hn::Set(du8, 0x30);
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const auto bytes = LoadCodes(p + c * 64);
    auto first = hn::And(bytes, low_bits), second = hn::ShiftRight<4>(bytes);
    if constexpr (F == kQ6_K) {
      const auto place = [&](hn::Vec<DU8> v) HWY_ATTR {
        const auto at = c == 0 ? hn::ShiftLeft<4>(v) : c == 1 ? hn::ShiftLeft<2>(v) : c == 2 ? v : hn::ShiftRight<2>(v);
        return hn::And(at, two_bits);
      };
      first = hn::Or(first, place(high[0]));
      second = hn::Or(second, place(high[1]));
    }
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
      sums[m][0].Add(first, a[m][block], c);
      sums[m][1].Add(second, a[m][block], 4 + c);
    }
  }
}

// total[m] += the block's part of the sums. `scales`: of the group; lane: the vector's first column.
template <int F, class Sum, int M>
HWY_INLINE void AddBlock(const uint8_t* scales, int64_t block, int lane, const typename Sum::Block* const* a,
                         const Sum (*sums)[2], VF* total) {
  VF d, m = hn::Zero(DF()), second = d = hn::Zero(DF());
  constexpr int kZero = F == kQ4_0 ? 8 : F == kQ8_0 ? 128 : 32;
  if constexpr (F == kQ4_0 || F == kQ8_0) {
    d = Halves(scales + block * 32 + lane * 2);
  } else if constexpr (F == kQ4_1) {
    d = Halves(scales + block * 64 + lane * 2);
    m = Halves(scales + block * 64 + 32 + lane * 2);
  } else if constexpr (F == kQ4_K) {
    const uint8_t* of256 = scales + block / 8 * 320;
    const uint8_t* own = of256 + 64 + block % 8 * 32 + lane;
    d = hn::Mul(Halves(of256 + lane * 2), Bytes(own));
    m = hn::Neg(hn::Mul(Halves(of256 + 32 + lane * 2), Bytes(own + 16)));
  } else {
    const uint8_t* of256 = scales + block / 8 * 288;
    const uint8_t* own = of256 + 32 + block % 8 * 32 + lane;
    const VF both = Halves(of256 + lane * 2);
    d = hn::Mul(both, SignedBytes(own));
    second = hn::Mul(both, SignedBytes(own + 16));
  }
#pragma GCC unroll 8
  for (int r = 0; r < M; ++r) {
    const auto& x = a[r][block];
    if constexpr (F == kQ6_K) {
      total[r] = sums[r][0].AddFrom(kZero, d, x.sum0, x, total[r]);
      total[r] = sums[r][1].AddFrom(kZero, second, x.sum1, x, total[r]);
      continue;
    }
    Sum both;
    both.v = hn::Add(sums[r][0].v, sums[r][1].v);
    if constexpr (F == kQ4_1 || F == kQ4_K) {
      total[r] = both.AddOffset(d, m, x.sum, x, total[r]);
    } else {
      total[r] = both.AddFrom(kZero, d, x.sum, x, total[r]);
    }
  }
}

// out[m][column]: 16 columns of M rows.
template <int F, class Sum, int M>
HWY_NOINLINE void RunGroup(const uint8_t* group, int64_t k, const typename Sum::Block* const* a,
                           float (*out)[kGroupRows]) {
  constexpr int64_t kCodes = kPackedCodes[F], kScales = kPackedScales[F];
  const uint8_t *scales = group + ScalesBegin(F, k), *next = group + PackedBytes(F, k);
  VF total[kVectors][M];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) total[v][m] = hn::Zero(DF());
  }
  const int64_t blocks = k / 32, ahead = linear::kCodesAhead / kCodes;
  for (int64_t block = 0; block < blocks; ++block) {
    const uint8_t* codes = group + block * kCodes;
    const int64_t beyond = block + ahead - blocks;
    const uint8_t* early = beyond < 0 ? codes + ahead * kCodes : next + beyond * kCodes;
    for (int64_t line = 0; line < kCodes; line += 64) hwy::Prefetch(early + line);
    hwy::Prefetch(next + (scales - group) + block * kScales);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      Sum sums[M][2];
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) sums[m][0].Clear(), sums[m][1].Clear();
      SumCodes<F, Sum, M>(codes + v * 4 * kLanes, a, block, sums);
      AddBlock<F, Sum, M>(scales, block, v * kLanes, a, sums, total[v]);
    }
  }
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) hn::StoreU(total[v][m], DF(), out[m] + v * kLanes);
  }
}

// Sums that left FP32 are taken again as the definition has it.
HWY_NOINLINE void TakeAgain(const lz_kernel_args* args, int64_t row, int64_t column, int64_t count, float* sums) {
  const gguf::ExactSums exact(args);
  for (int64_t c = 0; c < count; ++c)
    if (!std::isfinite(sums[c])) sums[c] = float(exact.At(row, column + c, sums[c]));
}
HWY_INLINE bool AllFinite(const float* sums) {
  bool finite = true;
  for (int c = 0; c < kGroupRows; c += kLanes)
    finite = finite && hn::AllTrue(DF(), hn::IsFinite(hn::LoadU(DF(), sums + c)));
  return finite;
}

// Columns of one group. to: their row of the output.
template <class T>
HWY_INLINE void StoreColumns(const lz_kernel_args* args, int64_t row, int64_t column, float* sums, T* to) {
  const lz_tensor &output = args->tensors[kOutput], &bias = args->tensors[kBias];
  const int64_t count = std::min(kGroupRows, output.shape[output.ndim - 1] - column);
  const T* add = Given(bias) ? Data<const T>(bias) + column : nullptr;
  if (args->scalars[kActivations].value.i == kAsGiven && !AllFinite(sums)) TakeAgain(args, row, column, count, sums);
  int64_t c = 0;
  for (; c + kLanes <= count; c += kLanes) {
    const VF v = hn::LoadU(DF(), sums + c);
    StoreF32(DF(), add ? hn::Add(v, LoadF32(DF(), add + c)) : v, to + column + c);
  }
  for (; c < count; ++c) FromFloat(sums[c] + (add ? ToFloat(add[c]) : 0.0f), to + column + c);
}

template <int F, class Sum, class T>
void RunGroups(const lz_kernel_args* args, int64_t rows, int64_t k, int64_t begin, int64_t end) {
  using Block = typename Sum::Block;
  const lz_tensor& packed = args->tensors[kPacked];
  const auto* blocks = static_cast<const Block*>(args->workspace);
  const lz_tensor& output = args->tensors[kOutput];
  const RowOffsets offsets(output);
  float out[kMaxTile][kGroupRows];
  for (int64_t g = begin; g < end; ++g) {
    const uint8_t* group = Data<const uint8_t>(packed) + g * packed.strides[0];
    for (int64_t row = 0; row < rows; row += kMaxTile) {
      const int count = int(std::min<int64_t>(kMaxTile, rows - row));
      const Block* a[kMaxTile];
      for (int m = 0; m < kMaxTile; ++m) a[m] = blocks + (row + std::min(m, count - 1)) * (k / 32);
      switch (count) {
        case 1: RunGroup<F, Sum, 1>(group, k, a, out); break;
        case 2: RunGroup<F, Sum, 2>(group, k, a, out); break;
        default: RunGroup<F, Sum, kMaxTile>(group, k, a, out);
      }
      for (int m = 0; m < count; ++m)
        StoreColumns(args, row + m, g * kGroupRows, out[m], Data<T>(output) + offsets[row + m]);
    }
  }
}

template <class Sum, class T>
int32_t Run(const lz_kernel_args* args) {
  using Block = typename Sum::Block;
  const lz_tensor &input = args->tensors[kInput], &output = args->tensors[kOutput];
  const int64_t rows = NumRows(output), k = input.shape[input.ndim - 1];
  const int64_t groups = args->tensors[kPacked].shape[0];
  auto* blocks = static_cast<Block*>(args->workspace);
  // 16k values take about 2 us on one core.
  ParallelFor(args, rows, 16384 / (k + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* x = Data<const T>(input) + RowOffset(input, row);
      for (int64_t b = 0; b < k / 32; ++b) MakeBlock(x + 32 * b, blocks + row * (k / 32) + b);
    }
  });
  // 32k weights take about 1 us on one core.
  ParallelFor(args, groups, 32768 / (kGroupRows * (k + 1) * std::max<int64_t>(rows, 1)) + 1,
              [&](int64_t begin, int64_t end) {
                switch (args->scalars[kFormat].value.i) {
                  case kQ4_0: return RunGroups<kQ4_0, Sum, T>(args, rows, k, begin, end);
                  case kQ4_1: return RunGroups<kQ4_1, Sum, T>(args, rows, k, begin, end);
                  case kQ8_0: return RunGroups<kQ8_0, Sum, T>(args, rows, k, begin, end);
                  case kQ4_K: return RunGroups<kQ4_K, Sum, T>(args, rows, k, begin, end);
                  default: return RunGroups<kQ6_K, Sum, T>(args, rows, k, begin, end);
                }
              });
  return 0;
}

int32_t Launch(const lz_kernel_args* args) {
  const bool int8 = args->scalars[kActivations].value.i == kInt8;
  return WithFloatType(DTypeOf(args->tensors[kInput]), [args, int8](auto t) {
    using T = decltype(t);
    return int8 ? Run<IntSum, T>(args) : Run<FloatSum, T>(args);
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lz
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lz {
namespace {
using namespace lz::ops::mlp_linear_gguf;
HWY_EXPORT(Launch);
int32_t LaunchBest(const lz_kernel_args* args) { return HWY_DYNAMIC_DISPATCH(Launch)(args); }

constexpr int64_t kIntBlockBytes = 48, kFloatBlockBytes = 144;
uint64_t Workspace(const lz_kernel_args* args) {
  const lz_tensor& input = args->tensors[kInput];
  const bool int8 = args->scalars[kActivations].value.i == kInt8;
  const int64_t blocks = NumRows(input) * (input.shape[input.ndim - 1] / 32);
  return uint64_t(blocks * (int8 ? kIntBlockBytes : kFloatBlockBytes));
}

constexpr auto kIntConstraints = std::to_array<Constraint>({
    {"packed.given", Rel::kEq, 1, {}, ReasonCode::kPackedWeightsRequired},
    {"activations", Rel::kEq, kInt8, {}, ReasonCode::kQuantFormatUnsupported},
});
constexpr auto kFloatConstraints = std::to_array<Constraint>({
    {"packed.given", Rel::kEq, 1, {}, ReasonCode::kPackedWeightsRequired},
    {"activations", Rel::kEq, kAsGiven, {}, ReasonCode::kQuantFormatUnsupported},
});
constexpr std::array<std::string_view, 3> kAccepts = {"bias", "packed", "activations"};
constexpr auto kFamily = std::to_array<KernelSpec>({
    {.id = "hwy.mlp.linear.gguf.int8",
     .operation = "mlp.linear.gguf",
     .dtypes = kF32F16BF16,
     .constraints = kIntConstraints,
     .accepts = kAccepts,
     .strides = Strides::kLastDimDense,
     .priority = 80,
     .deterministic = true,
     .numerics = "w4a8-int",
     .launch = &LaunchBest,
     .workspace = &Workspace},
    {.id = "hwy.mlp.linear.gguf.float",
     .operation = "mlp.linear.gguf",
     .dtypes = kF32F16BF16,
     .constraints = kFloatConstraints,
     .accepts = kAccepts,
     .strides = Strides::kLastDimDense,
     .priority = 80,
     .deterministic = true,
     .launch = &LaunchBest,
     .workspace = &Workspace},
});
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
#endif  // HWY_ONCE
