// The end of a tile of attention on CUDA whose splits are the blocks of a cluster.
#pragma once

#include "kernels/attention/tile_cuda.h"
#include "kernels/attention/write_rows_cuda.h"

#ifdef __CUDACC__
namespace lz::attention {

// A tile whose splits are the blocks of a cluster: each block writes some of the rows, from what all have of them.
struct TileOfCluster {
  int b, part, warp, half, lane;
};
template <class T, class S>
__device__ void WriteTogether(const CudaProblem& p, const CudaQueries& queries, const CudaRow* rows,
                              const TileOfCluster& at, const float (&out)[S::kBands][S::kColumns / 8][4],
                              const float (&top)[S::kBands][2], const float (&sum)[S::kBands][2], float* outs) {
  constexpr int kWidth = S::kDV + 4;  // the rows of a quarter of a warp are in different banks
  static_assert(S::kRows * kWidth * 4 <= S::kBytes && S::kRows % kMostTogether == 0);
  __shared__ TopAndSum of_rows[S::kRows];
  const int g = at.lane / 4, t = at.lane % 4;
  __syncthreads();  // the stages become sums
#pragma unroll
  for (int m = 0; m < S::kBands; ++m) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int r = at.warp * S::kRowsOfWarp + m * 16 + g + 8 * i;
      if (t == 0 && at.half == 0) of_rows[r] = {top[m][i], sum[m][i]};
#pragma unroll
      for (int n = 0; n < S::kColumns / 8; ++n) {
        *reinterpret_cast<float2*>(outs + r * kWidth + at.half * S::kColumns + n * 8 + 2 * t) =
            make_float2(out[m][n][2 * i], out[m][n][2 * i + 1]);
      }
    }
  }
  SyncCluster();
  const int blocks = BlocksOfCluster(), rows_of_block = S::kRows / blocks;
  const float unit = p.v_scale.data ? At(p.v_scale, rows[0].head / p.group) : 1.0f;
#pragma unroll 1
  for (int i = int(threadIdx.x) / kWarp; i < rows_of_block; i += S::kThreads / kWarp) {
    const int r = BlockOfCluster() * rows_of_block + i;
    const CudaRow& of = rows[r];
    if (!of.live) continue;
    float factor[kMostTogether], most = -HUGE_VALF, all = 0;
#pragma unroll
    for (int k = 0; k < kMostTogether; ++k) {
      factor[k] = k < blocks ? OfBlock(&of_rows[r], k)->top : -HUGE_VALF;
      most = fmaxf(most, factor[k]);
    }
#pragma unroll
    for (int k = 0; k < kMostTogether; ++k) {
      factor[k] = FastExp(factor[k] - (most == -HUGE_VALF ? 0.0f : most));
      if (k < blocks) all += OfBlock(&of_rows[r], k)->sum * factor[k];
    }
    const RowResult result = ResultOf(p, queries, of, at.b, at.part, most, all);
    if (at.lane == 0) WriteLse(p, queries, of, at.b, at.part, result);
#pragma unroll 1
    for (int e = 2 * at.lane; e < p.d_v; e += 2 * kWarp) {
      float2 value = {0, 0};
#pragma unroll
      for (int k = 0; k < kMostTogether; ++k) {
        if (k >= blocks) break;
        const float2 one = *OfBlock(reinterpret_cast<const float2*>(outs + r * kWidth + e), k);
        value.x += one.x * factor[k], value.y += one.y * factor[k];
      }
      const float share = result.share * unit;
      value = result.nothing ? make_float2(0, 0) : make_float2(value.x * share, value.y * share);
      if (p.part) {
        *reinterpret_cast<float2*>(p.part + result.part * p.d_v + e) = value;
      } else {
        T* to = static_cast<T*>(const_cast<void*>(p.out.data)) + result.at + e;
        *reinterpret_cast<uint32_t*>(to) = PackPair<T>(value.x, value.y);
      }
    }
  }
  SyncCluster();  // others have read what this block has
}

}  // namespace lz::attention
#endif  // __CUDACC__
