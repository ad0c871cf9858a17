// Shared by the Highway kernels of linear_gguf: packed groups of 16 columns times rows of input; lanes are output
// columns. A block's value is d * (w - zero) + m, so its part of a sum is d * (sum of w * a - zero * sum of a) +
// m * sum of a. A kernel provides `Sum`, which sums the products of a block, and its `Sum::Block`, 32 values of a row.
// Include only from files that Highway compiles per target (after kernels/simd.h).
#if defined(LZ_KERNELS_GEMM_GGUF_GROUPS_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LZ_KERNELS_GEMM_GGUF_GROUPS_H_
#undef LZ_KERNELS_GEMM_GGUF_GROUPS_H_
#else
#define LZ_KERNELS_GEMM_GGUF_GROUPS_H_
#endif

#include <algorithm>
#include <cmath>

#include "hwy/cache_control.h"
#include "kernels/gemm/gguf/exact_sums.h"
#include "kernels/gemm/gguf/lanes.h"
#include "kernels/gemm/gguf/spec.h"
#include "kernels/gemm/prefetch.h"
#include "kernels/launch.h"
#include "ops/mlp/linear/gguf.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE {
namespace {
using namespace lz::ops::mlp_linear_gguf;

inline constexpr int kMaxTile = 4;  // rows of input at once

// One vector of a group's columns: quantized values at `p`, the vector's first byte of the block's first part.
template <int F, class Sum, int M>
HWY_INLINE void SumQuantized(const uint8_t* p, const typename Sum::Block* const* a, int64_t block, Sum (*sums)[2]) {
  const DU8 du8;
  if constexpr (F == kQ8_0) {
#pragma GCC unroll 8
    for (int c = 0; c < 8; ++c) {
      const auto weights = hn::LoadU(du8, p + c * 64);
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) sums[m][c / 4].Add(weights, a[m][block], c);
    }
    return;
  }
  if constexpr (Sum::kSumsNibbles && F != kQ6_K) {
    Sum::template SumNibbles<M>(p, a, block, sums);
    return;
  }
  hn::Vec<DU8> high[2];
  if constexpr (F == kQ6_K) high[0] = LoadQuantized(p + 256), high[1] = LoadQuantized(p + 320);
  const auto low_bits = hn::Set(du8, 15), two_bits = hn::Set(du8, 0x30);
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const auto bytes = LoadQuantized(p + c * 64);
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

// total[m] += the block's part of the sums. `scales`: those of the group; lane: the vector's first column.
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
  constexpr int64_t kWeightBytes = kPackedCodes[F], kScales = kPackedScales[F];
  const uint8_t *scales = group + ScalesBegin(F, k), *next = group + PackedBytes(F, k);
  VF total[kVectors][M];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) total[v][m] = hn::Zero(DF());
  }
  const int64_t blocks = k / 32, prefetch = gemm::kQuantizedPrefetchBytes / kWeightBytes;
  for (int64_t block = 0; block < blocks; ++block) {
    const uint8_t* weights = group + block * kWeightBytes;
    const int64_t beyond = block + prefetch - blocks;
    const uint8_t* early = beyond < 0 ? weights + prefetch * kWeightBytes : next + beyond * kWeightBytes;
    for (int64_t line = 0; line < kWeightBytes; line += 64) hwy::Prefetch(early + line);
    hwy::Prefetch(next + (scales - group) + block * kScales);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      Sum sums[M][2];
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) sums[m][0].Clear(), sums[m][1].Clear();
      SumQuantized<F, Sum, M>(weights + v * 4 * kLanes, a, block, sums);
      AddBlock<F, Sum, M>(scales, block, v * kLanes, a, sums, total[v]);
    }
  }
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) hn::StoreU(total[v][m], DF(), out[m] + v * kLanes);
  }
}

// Computes sums that exceed the range of FP32 again, as in the definition.
inline HWY_NOINLINE void RecomputeNonFinite(const lz_kernel_args* args, int64_t row, int64_t column, int64_t count,
                                            float* sums) {
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
  if (args->scalars[kActivations].value.i == kAsGiven && !AllFinite(sums))
    RecomputeNonFinite(args, row, column, count, sums);
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
                gguf::WithFormat(args->scalars[kFormat].value.i,
                                 [&](auto f) { RunGroups<f, Sum, T>(args, rows, k, begin, end); });
              });
  return 0;
}

}  // namespace
}  // namespace lz::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
