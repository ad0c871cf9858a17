// The end of attention of few rows on CUDA: what the groups of a block have is merged and written.
#pragma once

#include "kernels/attention/rows_cuda.h"
#include "kernels/cuda_cluster.h"

#ifdef __CUDACC__
namespace lz::attention {

// What a block works on: rows from row0 on of sequence b and KV head kv, over a split of the keys.
struct FewBlock {
  int b, kv, split;
  int64_t row0;
};
// The largest logit and the sum of a row, of which each group has some keys; `factor(g)` becomes what the group's sums
// are multiplied by.
struct TopAndSum {
  float top, sum;
};
template <int kMost, class Top, class Sum, class Factor>
__device__ TopAndSum MergeGroups(int groups, Top&& top, Sum&& sum, Factor&& factor) {
  TopAndSum all = {-HUGE_VALF, 0}, of[kMost];  // all are loaded before one is used: another block's take long
#pragma unroll
  for (int g = 0; g < kMost; ++g) {
    of[g] = {-HUGE_VALF, 0};
    if (g < groups) of[g] = {top(g), sum(g)};
  }
#pragma unroll
  for (int g = 0; g < kMost; ++g) all.top = fmaxf(all.top, of[g].top);
  const float base = all.top == -HUGE_VALF ? 0.0f : all.top;
#pragma unroll
  for (int g = 0; g < kMost; ++g) {
    if (g >= groups) break;
    const float kept = FastExp(of[g].top - base);
    all.sum += of[g].sum * kept;
    factor(g) = kept;
  }
  return all;
}

// Merges what the groups of a block (lanes or warps) have of each row, and writes the rows. kTogether: the splits of
// the rows are the blocks of a cluster, each of which writes a share of the outputs.
template <bool kTogether = false, int kRows, int kGroups, int kWidth>
__device__ void WriteRows(const CudaProblem& p, const CudaSequence& seq, const CudaQueries& queries,
                          const FewBlock& block, float (&outs)[kGroups][kRows][kWidth], float (&tops)[kGroups][kRows],
                          const float (&sums)[kGroups][kRows]) {
  __shared__ RowResult results[kRows];
  __shared__ TopAndSum own[kRows];
  __shared__ float factors[kTogether ? kMostTogether : 1][kRows];
  const int64_t rows = int64_t(queries.count) * p.group - block.row0;
  const int live = int(rows < kRows ? rows : kRows);
  const int rank = kTogether ? BlockOfCluster() : 0, blocks = kTogether ? BlocksOfCluster() : 1;
  const int r = threadIdx.x;
  const auto finish = [&](const TopAndSum& of) {
    const CudaRow row = RowOf(p, queries, block.row0 + r, block.kv, seq.length);
    results[r] = ResultOf(p, queries, row, block.b, block.split, of.top, of.sum);
    if (rank == 0) WriteLse(p, queries, row, block.b, block.split, results[r]);
  };
  __syncthreads();
  if (r < live) {
    own[r] = MergeGroups<kGroups>(
        kGroups, [&](int g) { return tops[g][r]; }, [&](int g) { return sums[g][r]; },
        [&](int g) -> float& { return tops[g][r]; });
    if constexpr (!kTogether) finish(own[r]);
  }
  __syncthreads();
  const auto of_groups = [&](int row, int e) {
    float value = 0;
    for (int g = 0; g < kGroups; ++g) value += outs[g][row][e] * tops[g][row];
    return value;
  };
  if constexpr (kTogether) {
#pragma unroll 1
    for (int i = r; i < live * kWidth; i += int(blockDim.x))
      outs[0][i / kWidth][i % kWidth] = of_groups(i / kWidth, i % kWidth);
    SyncCluster();
    if (r < live) {
      finish(MergeGroups<kMostTogether>(
          blocks, [&](int g) { return OfBlock(&own[r], g)->top; }, [&](int g) { return OfBlock(&own[r], g)->sum; },
          [&](int g) -> float& { return factors[g][r]; }));
    }
    __syncthreads();
  }
  const float unit = p.v_scale.data ? At(p.v_scale, block.kv) : 1.0f;
#pragma unroll 1
  for (int i = rank * int(blockDim.x) + r; i < live * kWidth; i += blocks * int(blockDim.x)) {
    const int row = i / kWidth, e = i % kWidth;
    if (e >= p.d_v) continue;
    float value = 0;
    if constexpr (kTogether) {
      float of[kMostTogether];
#pragma unroll
      for (int g = 0; g < kMostTogether; ++g) of[g] = g < blocks ? *OfBlock(&outs[0][row][e], g) : 0.0f;
#pragma unroll
      for (int g = 0; g < kMostTogether; ++g) {
        if (g < blocks) value += of[g] * factors[g][row];
      }
    } else {
      value = of_groups(row, e);
    }
    const RowResult& result = results[row];
    value = result.nothing ? 0.0f : value * result.share * unit;
    if (p.part) {
      p.part[result.part * p.d_v + e] = value;
    } else {
      StoreFloating(const_cast<void*>(p.out.data), result.at + e, p.type, value);
    }
  }
  if constexpr (kTogether) SyncCluster();  // others have read what this block has
}

}  // namespace lz::attention
#endif  // __CUDACC__
