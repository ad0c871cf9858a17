// Products of rows with the weights of their experts on CUDA in FP32: any strides, any sizes, float32 or 16 bits. A
// block computes 64 rows by 64 columns, a thread 4 by 4 of them; the next 16 columns of x and of the weights are
// loaded while those before them are multiplied.
#pragma once

#include "kernels/moe/experts_cuda.h"

#ifdef __CUDACC__
namespace lz::experts {

inline constexpr int kSumRows = 64, kSumDepth = 16, kSumThreads = 256;
inline constexpr int kSumWidth = kSumRows + 4;  // of a line in shared memory: 16 bytes more, other banks

// What a thread has of a tile of 64 rows by 16 columns. Lines of the threads follow one another along the dense axis.
struct SumLoads {
  static constexpr int kOf = kSumRows * kSumDepth / kSumThreads;
  float v[kOf];
  // f(u, row, column)
  template <class F>
  __device__ static void Each(bool by_rows, F&& f) {
#pragma unroll
    for (int u = 0; u < kOf; ++u) {
      const int i = u * kSumThreads + int(threadIdx.x);
      f(u, by_rows ? i % kSumRows : i / kSumDepth, by_rows ? i / kSumRows : i % kSumDepth);
    }
  }
  __device__ void Store(float (&tile)[kSumDepth][kSumWidth], bool by_rows) const {
    Each(by_rows, [&](int u, int row, int column) { tile[column][row] = v[u]; });
  }
};

template <class X, class W, int kSides, class End>
__global__ void __launch_bounds__(kSumThreads) ExpertSums(const Product p, const End end) {
  __shared__ __align__(16) float xs[kSumDepth][kSumWidth];
  __shared__ __align__(16) float ws[kSides][kSumDepth][kSumWidth];
  __shared__ int64_t places[kSumRows];
  Work work;
  if (!FindWork<kSumRows, End::kClears>(p, blockIdx.x, &work)) return;
  const int first = int(blockIdx.y) * kBlockColumns, count = int(work.end - work.begin);
  if (work.expert >= p.experts) return Clear(p, end, work, first, int(threadIdx.x), kSumThreads);
  if (threadIdx.x < kSumRows) places[threadIdx.x] = int(threadIdx.x) < count ? PlaceOf(p, work.begin + threadIdx.x) : 0;
  __syncthreads();

  const bool w_by_rows = p.side[0].column != 1;
  SumLoads x, w[kSides];
  const auto load = [&](int k0) {
    SumLoads::Each(false, [&](int u, int row, int column) {
      const bool there = row < count && k0 + column < p.k;
      x.v[u] = there ? ToFloat(static_cast<const X*>(p.x)[places[row] + (k0 + column) * p.x_column]) : 0.0f;
    });
#pragma unroll
    for (int s = 0; s < kSides; ++s) {
      const Side& side = p.side[s];
      const W* of = static_cast<const W*>(side.weight) + work.expert * side.expert;
      SumLoads::Each(w_by_rows, [&](int u, int row, int column) {
        const bool there = first + row < p.n && k0 + column < p.k;
        w[s].v[u] = there ? ToFloat(of[(first + row) * side.row + (k0 + column) * side.column]) : 0.0f;
      });
    }
  };

  const int row0 = int(threadIdx.x) / 16 * 4, column0 = int(threadIdx.x) % 16 * 4;
  float sums[kSides][4][4] = {};
  load(0);
  for (int k0 = 0; k0 < p.k; k0 += kSumDepth) {
    __syncthreads();  // what is there has been multiplied
    x.Store(xs, false);
#pragma unroll
    for (int s = 0; s < kSides; ++s) w[s].Store(ws[s], w_by_rows);
    __syncthreads();
    if (k0 + kSumDepth < p.k) load(k0 + kSumDepth);
#pragma unroll
    for (int i = 0; i < kSumDepth; ++i) {
      const auto a = *reinterpret_cast<const Vector<float, 4>*>(&xs[i][row0]);
#pragma unroll
      for (int s = 0; s < kSides; ++s) {
        const auto b = *reinterpret_cast<const Vector<float, 4>*>(&ws[s][i][column0]);
#pragma unroll
        for (int r = 0; r < 4; ++r) {
#pragma unroll
          for (int c = 0; c < 4; ++c) sums[s][r][c] += a.v[r] * b.v[c];
        }
      }
    }
  }

#pragma unroll
  for (int r = 0; r < 4; ++r) {
    if (row0 + r >= count) continue;
    const auto row = end.Of(p, work.begin + row0 + r);
#pragma unroll
    for (int c = 0; c < 4; c += 2) {
      const int column = first + column0 + c;
      if (column >= p.n) continue;
      const bool both = column + 1 < p.n;
      const auto value = [&](int i) {
        return end.Value(p, row, work.expert, column + i, sums[0][r][c + i], sums[kSides - 1][r][c + i]);
      };
      end.Store(row, column, value(0), both ? value(1) : 0.0f, both);
    }
  }
}

template <class X, class W, int kSides, class End>
int32_t LaunchSums(const Product& p, const End& end, void* stream) {
  const int64_t tiles = MostTiles(p, kSumRows, End::kClears), across = (p.n + kBlockColumns - 1) / kBlockColumns;
  if (tiles == 0 || across == 0) return LZ_LAUNCH_DONE;
  if (tiles > 0x7fffffff || across > kMaxGridY) return LZ_LAUNCH_REFUSED;
  const dim3 grid{unsigned(tiles), unsigned(across)};
  ExpertSums<X, W, kSides, End><<<grid, kSumThreads, 0, static_cast<cudaStream_t>(stream)>>>(p, end);
  return Launched();
}

}  // namespace lz::experts
#endif  // __CUDACC__
