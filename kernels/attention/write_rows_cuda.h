// The end of attention of few rows on CUDA: what the groups of a block have is merged and written.
#pragma once

#include "kernels/attention/rows_cuda.h"

#ifdef __CUDACC__
namespace lz::attention {

// What a block works on: rows from row0 on of sequence b and KV head kv, over a split of the keys.
struct FewBlock {
  int b, kv, split;
  int64_t row0;
};
// Merges what the groups of a block (lanes or warps) have of each row, and writes the rows.
template <int kRows, int kGroups, int kWidth>
__device__ void WriteRows(const CudaProblem& p, const CudaSequence& seq, const CudaQueries& queries,
                          const FewBlock& block, const float (&outs)[kGroups][kRows][kWidth],
                          float (&tops)[kGroups][kRows], const float (&sums)[kGroups][kRows]) {
  __syncthreads();
  __shared__ float block_top[kRows], block_sum[kRows];
  if (threadIdx.x < kRows) {
    const int r = threadIdx.x;
    float m = -HUGE_VALF, l = 0;
    for (int g = 0; g < kGroups; ++g) m = fmaxf(m, tops[g][r]);
    const float base = m == -HUGE_VALF ? 0.0f : m;
    for (int g = 0; g < kGroups; ++g) {
      const float factor = FastExp(tops[g][r] - base);
      l += sums[g][r] * factor;
      tops[g][r] = factor;
    }
    block_top[r] = m, block_sum[r] = l;
  }
  __syncthreads();
  const float unit = p.v_scale.data ? At(p.v_scale, block.kv) : 1.0f;
  for (int r = 0; r < kRows && block.row0 + r < p.rows(); ++r) {
    const CudaRow of = RowOf(p, queries, block.row0 + r, block.kv, seq.length);
    const RowResult result = ResultOf(p, queries, of, block.b, block.split, block_top[r], block_sum[r]);
    if (threadIdx.x == 0) WriteLse(p, queries, of, block.b, block.split, result);
    for (int e = threadIdx.x; e < p.d_v; e += blockDim.x) {
      float value = 0;
      for (int g = 0; g < kGroups; ++g) value += outs[g][r][e] * tops[g][r];
      value = result.nothing ? 0.0f : value * result.share * unit;
      if (p.part) {
        p.part[result.part * p.d_v + e] = value;
      } else {
        StoreFloat(const_cast<void*>(p.out.data), result.at + e, p.type, value);
      }
    }
  }
}

}  // namespace lz::attention
#endif  // __CUDACC__
