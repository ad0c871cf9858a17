// Products of rows with the weights of their experts on CUDA in 16 bits, by products of matrices (mma.sync): a block
// computes 16, 64 or 128 rows by 64 columns of one weight or of gate and up, over stages of 64 columns of x that
// asynchronous copies bring. Sums are FP32. Source: own.
#pragma once

#include "kernels/cuda_copy.h"
#include "kernels/cuda_shared.h"
#include "kernels/mma_cuda.h"
#include "kernels/moe/experts_cuda.h"

#ifdef __CUDACC__
namespace lz::experts {

inline constexpr int kDepth = kBlockColumns;  // columns of x in a stage
inline constexpr int kLine = kDepth + 8;      // elements in shared memory: 16 bytes more, other banks

// Warps by kDown bands of rows and kAcross of columns.
template <int kRowsOfTile, int kDown, int kAcrossTile, int kStagesAtOnce, int kSidesOfProduct>
struct Shape {
  static constexpr int kRows = kRowsOfTile, kAcross = kAcrossTile, kStages = kStagesAtOnce, kSides = kSidesOfProduct;
  static constexpr int kThreads = kDown * kAcross * kWarp;
  static constexpr int kBands = kRows / kDown / 16;         // of 16 rows, of a warp
  static constexpr int kColumns = kBlockColumns / kAcross;  // of a warp
  static constexpr int kLines = kRows + kSides * kBlockColumns;
  static constexpr int kStage = kLines * kLine;  // elements
  static constexpr int kBytes = 2 * kStages * kStage;
  static constexpr int kCopies = kLines * (kDepth / 8) / kThreads;  // of a thread, in a stage
  static_assert(kLines * (kDepth / 8) % kThreads == 0 && kThreads % (kDepth / 8) == 0 && kColumns % 16 == 0);
};

// A power of two that brings the largest finite value of a row to 2^14 or above, below 2^15; float16 then has 11 bits
// of all that matter.
__device__ inline float UnitOf(float top) {
  const int exponent = int(__float_as_uint(top) >> 23 & 0xff) - 14;
  return __uint_as_float(uint32_t(exponent < 1 ? 1 : exponent) << 23);
}

// The sums of a lane: of each band rows l / 4 and l / 4 + 8, of 8 columns those from 2 (l % 4) on.
template <class S>
using Sums = float[S::kBands][S::kColumns / 8][4];

template <class T, class S>
__device__ void MultiplyStage(Sums<S> (&sums)[S::kSides], const T* stage, int band, int across, int lane) {
#pragma unroll
  for (int i = 0; i < kDepth; i += 16) {
    uint32_t a[S::kBands][4];
#pragma unroll
    for (int m = 0; m < S::kBands; ++m) {
      LoadMatrices<false>(a[m], stage + ((band * S::kBands + m) * 16 + lane % 16) * kLine + i + lane / 16 * 8);
    }
#pragma unroll
    for (int s = 0; s < S::kSides; ++s) {
      const T* weights = stage + (S::kRows + s * kBlockColumns + across * S::kColumns) * kLine;
#pragma unroll
      for (int n = 0; n < S::kColumns / 16; ++n) {
        uint32_t b[4];
        LoadMatrices<false>(b, weights + (n * 16 + lane / 16 * 8 + lane % 8) * kLine + i + lane / 8 % 2 * 8);
#pragma unroll
        for (int m = 0; m < S::kBands; ++m) {
          Multiply<T>(sums[s][m][2 * n], a[m], b[0], b[1]);
          Multiply<T>(sums[s][m][2 * n + 1], a[m], b[2], b[3]);
        }
      }
    }
  }
}

// kScaledX: x has scales.
template <class T, class S, bool kScaledX, class End>
__global__ void __launch_bounds__(S::kThreads) ExpertTiles(const Product p, const End end) {
  extern __shared__ __align__(128) unsigned char expert_tiles[];
  __shared__ float tops[S::kAcross][S::kRows];
  T* const tiles = reinterpret_cast<T*>(expert_tiles);
  Work work;
  if (!FindWork<S::kRows, End::kClears>(p, blockIdx.x, &work)) return;
  const int first = int(blockIdx.y) * kBlockColumns, count = int(work.end - work.begin);
  if (work.expert >= p.experts) return Clear(p, end, work, first, int(threadIdx.x), S::kThreads);
  const int warp = int(threadIdx.x) / kWarp, lane = int(threadIdx.x) % kWarp;
  const int band = warp / S::kAcross, across = warp % S::kAcross;

  // A thread copies the same 8 columns of the same lines in each stage.
  const int own = int(threadIdx.x) % (kDepth / 8) * 8;
  const T* from[S::kCopies];
#pragma unroll
  for (int u = 0; u < S::kCopies; ++u) {
    const int line = (u * S::kThreads + int(threadIdx.x)) / (kDepth / 8);
    const int side = line < S::kRows + kBlockColumns ? 0 : S::kSides - 1,
              column = first + (line - S::kRows) % kBlockColumns;
    from[u] = nullptr;
    if (line < S::kRows) {
      if (line < count) from[u] = static_cast<const T*>(p.x) + PlaceOf(p, work.begin + line) + own;
    } else if (column < p.n) {
      const Side& w = p.side[side];
      from[u] = static_cast<const T*>(w.weight) + work.expert * w.expert + column * w.row + own;
    }
  }
  const auto copy = [&](int slot, int k0) {
    T* const to = tiles + slot * S::kStage + own;
#pragma unroll
    for (int u = 0; u < S::kCopies; ++u) {
      const int line = (u * S::kThreads + int(threadIdx.x)) / (kDepth / 8);
      const bool there = from[u] != nullptr && k0 + own < p.k;
      CopyAsync16(to + line * kLine, there ? static_cast<const void*>(from[u] + k0) : p.x, there ? 16 : 0);
    }
  };

  Sums<S> sums[S::kSides] = {};
  const int steps = (p.k + kDepth - 1) / kDepth;
#pragma unroll
  for (int i = 0; i < S::kStages - 1; ++i) {
    if (i < steps) copy(i, i * kDepth);
    CommitCopies();
  }
  for (int step = 0; step < steps; ++step) {
    WaitForCopies<S::kStages - 2>();
    __syncthreads();  // this stage is there, the one before is done with
    const int later = step + S::kStages - 1;
    if (later < steps) copy(later % S::kStages, later * kDepth);
    CommitCopies();
    const T* stage = tiles + step % S::kStages * S::kStage;
    if constexpr (!kScaledX) {
      MultiplyStage<T, S>(sums, stage, band, across, lane);
    } else {
      Sums<S> part[S::kSides] = {};
      MultiplyStage<T, S>(part, stage, band, across, lane);
#pragma unroll
      for (int m = 0; m < S::kBands; ++m) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int row = (band * S::kBands + m) * 16 + lane / 4 + 8 * i;
          const float scale = row < count ? p.x_scales[(work.begin + row) * steps + step] : 0.0f;
#pragma unroll
          for (int n = 0; n < S::kColumns / 8; ++n) {
            sums[0][m][n][2 * i] += scale * part[0][m][n][2 * i];
            sums[0][m][n][2 * i + 1] += scale * part[0][m][n][2 * i + 1];
          }
        }
      }
    }
  }
  WaitForCopies<0>();

#pragma unroll
  for (int m = 0; m < S::kBands; ++m) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int of_tile = (band * S::kBands + m) * 16 + lane / 4 + 8 * i;
      const auto row = end.Of(p, work.begin + (of_tile < count ? of_tile : 0));
      float top = 0;
#pragma unroll
      for (int n = 0; n < S::kColumns / 8; ++n) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int column = first + across * S::kColumns + n * 8 + lane % 4 * 2 + c;
          float& sum = sums[0][m][n][2 * i + c];
          sum = column < p.n ? end.Value(p, row, work.expert, column, sum, sums[S::kSides - 1][m][n][2 * i + c]) : 0.0f;
          if (End::kScaled && isfinite(sum)) top = fmaxf(top, fabsf(sum));
        }
      }
      if constexpr (End::kScaled) {
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
        if (lane % 4 == 0) tops[across][of_tile] = top;
      }
    }
  }
  if constexpr (End::kScaled) __syncthreads();
#pragma unroll
  for (int m = 0; m < S::kBands; ++m) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int of_tile = (band * S::kBands + m) * 16 + lane / 4 + 8 * i;
      if (of_tile >= count) continue;
      const auto row = end.Of(p, work.begin + of_tile);
      float share = 1;
      if constexpr (End::kScaled) {
        float top = 0;
#pragma unroll
        for (int a = 0; a < S::kAcross; ++a) top = fmaxf(top, tops[a][of_tile]);
        const float unit = UnitOf(top);
        share = 1 / unit;
        if (across == 0 && lane % 4 == 0) end.scales[(work.begin + of_tile) * gridDim.y + blockIdx.y] = unit;
      }
#pragma unroll
      for (int n = 0; n < S::kColumns / 8; ++n) {
        const int column = first + across * S::kColumns + n * 8 + lane % 4 * 2;
        if (column >= p.n) continue;
        end.Store(row, column, sums[0][m][n][2 * i] * share, sums[0][m][n][2 * i + 1] * share, column + 1 < p.n);
      }
    }
  }
}

template <class T, class S, bool kScaledX, class End>
int32_t LaunchTilesOf(const Product& p, const End& end, void* stream) {
  const int64_t tiles = MostTiles(p, S::kRows, End::kClears), across = (p.n + kBlockColumns - 1) / kBlockColumns;
  if (tiles == 0 || across == 0) return LZ_LAUNCH_DONE;
  constexpr auto kKernel = &ExpertTiles<T, S, kScaledX, End>;
  if (tiles > 0x7fffffff || across > kMaxGridY || !HasShared<kKernel>(S::kBytes)) return LZ_LAUNCH_REFUSED;
  const dim3 grid{unsigned(tiles), unsigned(across)};
  kKernel<<<grid, S::kThreads, S::kBytes, static_cast<cudaStream_t>(stream)>>>(p, end);
  return Launched();
}
// By the rows of an expert.
template <class T, int kSides, bool kScaledX, class End>
int32_t LaunchTiles(const Product& p, const End& end, void* stream) {
  const int64_t rows = MeanRows(p);
  if (rows <= 16) return LaunchTilesOf<T, Shape<16, 1, 4, 4, kSides>, kScaledX>(p, end, stream);
  if (rows > 128) {
    const int32_t code = LaunchTilesOf<T, Shape<128, 4, 2, 3, kSides>, kScaledX>(p, end, stream);
    if (code != LZ_LAUNCH_REFUSED) return code;  // a device with less shared memory
  }
  return LaunchTilesOf<T, Shape<64, 2, 2, 3, kSides>, kScaledX>(p, end, stream);
}

}  // namespace lz::experts
#endif  // __CUDACC__
