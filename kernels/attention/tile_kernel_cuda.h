// Attention on CUDA by products of matrices in 16 bits: a block takes 64 or 128 rows that share a KV head over a
// split of the keys. A warp has 16 or 32 rows and, of wide values, half the columns. Sums, softmax and biases in FP32;
// weights are rounded to 16 bits for the product with the values (class bf16-p). Keys come while those before them are
// multiplied. Source: own; online softmax arXiv:1805.02867, split keys arXiv:2307.08691.
#pragma once

#include "kernels/attention/map_cuda.h"
#include "kernels/attention/tile_cuda.h"

#ifdef __CUDACC__
namespace lz::attention {

// kMapped: with a map of blocks.
template <class T, class S, bool kMapped>
__global__ void __launch_bounds__(S::kThreads) TileAttention(const CudaProblem p) {
  constexpr int kDQ = S::kDQ, kDV = S::kDV, kKeys = S::kKeys;
  constexpr bool kLatent = S::kLatent;
  constexpr int kColumns = S::kColumns;
  extern __shared__ __align__(128) char tiles_of_block[];
  T* const shared_q = reinterpret_cast<T*>(tiles_of_block);
  T* const shared_k = shared_q + S::kQ;  // two of them, then two of the values
  T* const shared_v = shared_k + 2 * S::kK;
  float* const shared_z = reinterpret_cast<float*>(shared_v + 2 * S::kV);
  __shared__ KeySpot spots[2][kKeys];
  __shared__ CudaRow rows_of_tile[S::kRows];  // in registers they would be spilled

  BlockOfTiles block;
  if (!FindBlock<kMapped>(p, S::kRows, kKeys, blockIdx.x, &block)) return;
  const auto& [kv, split, b, seq, queries, row0, keys] = block;
  const int warp = threadIdx.x / kWarp % 4, half = threadIdx.x / kWarp / 4, lane = threadIdx.x % kWarp;
  const int begin = keys.begin, end = keys.end;

  MapWalk walk;
  const auto find = [&](int stage, int j0) {
    if (threadIdx.x >= (kKeys + kWarp - 1) / kWarp * kWarp) return;  // whole warps walk
    const int j = j0 + int(threadIdx.x);
    KeySpot spot;
    if constexpr (kMapped) {
      const int32_t key = walk.Key(p, kv, b, j, end);
      spot = {key < 0 ? -1 : 0, key};
    } else {
      spot = SpotOf(p, seq, b, j, end);
    }
    if (threadIdx.x < kKeys) spots[stage][threadIdx.x] = spot;
  };
  const auto copy = [&](int stage) {
    CopyKeys<T, kDQ, S::kMore, kKeys, S::kThreads>(shared_k + stage * S::kK, spots[stage], p.k, p.k_more, kv,
                                                   p.d_qk - p.d_more, p.d_more);
    if constexpr (!kLatent) {
      CopyKeys<T, kDV, kDV, kKeys, S::kThreads>(shared_v + stage * S::kV, spots[stage], p.v, p.v, kv, p.d_v, 0);
    }
    CommitCopies();
  };
  find(0, begin);
  CopyQueries<T, S>(shared_q, p, queries, b, kv, row0);
  if (threadIdx.x < S::kRows) {
    rows_of_tile[threadIdx.x] = RowOf(p, queries, row0 + int(threadIdx.x), kv, seq.length);
  }
  __syncthreads();
  copy(0);
  find(1, begin + kKeys);

  // Of this lane: of each band rows g and g + 8.
  const int g = lane / 4;
  const auto row = [&](int m, int i) -> const CudaRow& {
    return rows_of_tile[warp * S::kRowsOfWarp + m * 16 + g + 8 * i];
  };
  const float unit = p.scale * (p.k_scale.data ? At(p.k_scale, kv) : 1.0f);
  float out[S::kBands][kColumns / 8][4] = {}, top[S::kBands][2], sum[S::kBands][2] = {};
#pragma unroll
  for (int m = 0; m < S::kBands; ++m) top[m][0] = top[m][1] = -HUGE_VALF;

  for (int j0 = begin, stage = 0; j0 < end; j0 += kKeys, stage ^= 1) {
    WaitForCopies<0>();
    __syncthreads();  // this tile is there, the one before is done with
    if (j0 + kKeys < end) {
      copy(stage ^ 1);
      find(stage, j0 + 2 * kKeys);
    }
    const T* k = shared_k + stage * S::kK;
    const T* v = kLatent ? k : shared_v + stage * S::kV;

    Logits<S> z = {};
    MultiplyKeys<T, S>(z, shared_q, k, shared_z, warp, half, lane);
#pragma unroll
    for (int m = 0; m < S::kBands; ++m) {
      const CudaRow rows[2] = {row(m, 0), row(m, 1)};
      constexpr Changes kChanges = S::kMore < kDQ ? Changes::kScale : Changes::kAny;
      ToLogits<kKeys, kChanges>(z[m], p, rows, unit, b, j0, j0 + kKeys <= end, [&](int i) { return j0 + i < end; });
      float kept[2];
      Weigh<kKeys>(z[m], top[m], sum[m], kept);
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) out[m][n][i] *= kept[i / 2];
      }
    }
    MultiplyValues<T, S>(out, z, v, half, lane);
  }

  WaitForCopies<0>();  // of a split without keys

  const float value_unit = p.v_scale.data ? At(p.v_scale, kv) : 1.0f;
#pragma unroll
  for (int m = 0; m < S::kBands; ++m) {
    const CudaRow rows[2] = {row(m, 0), row(m, 1)};
    WriteBand<T, kColumns>(p, queries, rows, b, split, out[m], top[m], sum[m], half * kColumns, value_unit);
  }
}

template <class T, class S, bool kMapped = false>
int32_t LaunchTileOf(const CudaProblem& p, void* stream) {
  return LaunchBlocks<&TileAttention<T, S, kMapped>, S>(p, stream);
}
// Keys and values of one tensor each.
template <class T, bool kMapped>
int32_t LaunchTilesOfHeads(const CudaProblem& p, void* stream) {
  const bool large = CutOfTiles(p).rows == kLargeTile;
  const int d = p.d_qk > p.d_v ? p.d_qk : p.d_v;
  if (d <= 64) {
    return large ? LaunchTileOf<T, TileShape<64, 64, 64, 64, 2, 1, false>, kMapped>(p, stream)
                 : LaunchTileOf<T, TileShape<64, 64, 64, 64, 1, 1, false>, kMapped>(p, stream);
  }
  if (d <= 128) {
    return large ? LaunchTileOf<T, TileShape<128, 128, 128, 48, 2, 1, false>, kMapped>(p, stream)
                 : LaunchTileOf<T, TileShape<128, 128, 128, 64, 1, 1, false>, kMapped>(p, stream);
  }
  return LaunchTileOf<T, TileShape<256, 256, 256, 32, 1, 1, false>, kMapped>(p, stream);
}
template <class T>
int32_t LaunchTiles(const CudaProblem& p, void* stream) {
  if (p.latent) return LaunchTileOf<T, TileShape<576, 512, 512, 32, 1, 2, true>>(p, stream);
  if (p.d_more > 0) return LaunchTileOf<T, TileShape<192, 128, 128, 64, 1, 1, false>>(p, stream);
  return LaunchTilesOfHeads<T, false>(p, stream);
}

}  // namespace lz::attention
#endif  // __CUDACC__
