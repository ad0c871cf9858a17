// Attention of heads with more than 256 columns, up to 512, in 16 bits, on CUDA: a block of eight warps takes 16 or 64
// rows that share a KV head over a split of the keys. The warps that share 16 rows have a share of the columns each:
// its queries are in registers, its products of queries and keys are added to those of the others through shared
// memory, and of the values it multiplies its own. So shared memory has keys and values alone. Sums, softmax and biases
// in FP32; weights are rounded to 16 bits for the product with the values (class bf16-p). Source: own; online softmax
// arXiv:1805.02867, split keys arXiv:2307.08691.
#pragma once

#include "kernels/attention/map_cuda.h"
#include "kernels/attention/tile_cuda.h"
#include "kernels/attention/tile_memory.h"

#ifdef __CUDACC__
namespace lz::attention {

// A block's rows, keys and columns, in the names of TileShape where its functions are used.
template <int kRowsOfBlock>
struct WideShape {
  static constexpr int kD = int(kMostWideHeadDim), kDQ = kD, kMore = kD, kRows = kRowsOfBlock, kKeys = 16;
  static constexpr int kWarps = 8, kThreads = kWarps * kWarp, kBands = 1;  // of 16 rows, of a warp
  static constexpr int kBandsOfBlock = kRows / 16, kShares = kWarps / kBandsOfBlock, kColumns = kD / kShares;
  static constexpr int kWidthQ = kD + kChunk, kWidthV = kWidthQ, kWidthS = kKeys + 4;
  static constexpr bool kLatent = false;
  static constexpr int kTile = kKeys * kWidthQ;  // elements of a stage's keys, and of its values
  static constexpr int kQueries = 2 * kRows * kWidthQ, kTiles = 2 * 4 * kTile;  // bytes
  static constexpr int kLogits = 4 * kShares * kRows * kWidthS;                 // bytes
  static constexpr int kBytes = kTiles + kLogits;
  // Blocks of a multiprocessor, by their registers.
  static constexpr int kBlocks = kColumns <= 64 ? 2 : 1;
  static_assert(kQueries <= kTiles, "queries are where keys and values come later");
};

// Products of the warp's share of the columns, as Logits has them; two sums of each, which need not wait for another.
template <class T, class S>
__device__ void MultiplyShare(Logits<S>& z, const uint32_t (&q)[S::kColumns / 16][4], const T* k, int share, int lane) {
  Logits<S> other = {};
#pragma unroll
  for (int n = 0; n < S::kColumns / 16; ++n) {
    auto& sum = n % 2 == 0 ? z[0] : other[0];
#pragma unroll
    for (int s = 0; s < S::kKeys / 16; ++s) {
      uint32_t b[4];
      LoadMatrices<false>(
          b, k + (s * 16 + lane / 16 * 8 + lane % 8) * S::kWidthQ + share * S::kColumns + n * 16 + lane / 8 % 2 * 8);
      Multiply<T>(sum[2 * s], q[n], b[0], b[1]);
      Multiply<T>(sum[2 * s + 1], q[n], b[2], b[3]);
    }
  }
#pragma unroll
  for (int n = 0; n < S::kKeys / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) z[0][n][i] += other[0][n][i];
  }
}

// The products of all columns: the sums of the shares, in one order, so that the warps of a row weigh it alike.
template <class S>
__device__ void AddShares(Logits<S>& z, float (&shares)[S::kShares][S::kRows][S::kWidthS], int share, int first,
                          int lane) {
  const int column = lane % 4 * 2;
#pragma unroll
  for (int n = 0; n < S::kKeys / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      *reinterpret_cast<float2*>(&shares[share][first + 8 * i][n * 8 + column]) =
          make_float2(z[0][n][2 * i], z[0][n][2 * i + 1]);
      z[0][n][2 * i] = z[0][n][2 * i + 1] = 0;
    }
  }
  __syncthreads();
#pragma unroll
  for (int s = 0; s < S::kShares; ++s) {
#pragma unroll
    for (int n = 0; n < S::kKeys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float2 two = *reinterpret_cast<const float2*>(&shares[s][first + 8 * i][n * 8 + column]);
        z[0][n][2 * i] += two.x, z[0][n][2 * i + 1] += two.y;
      }
    }
  }
}

// kChanges: see ToLogits.
template <class T, class S, Changes kChanges>
__global__ void __launch_bounds__(S::kThreads, S::kBlocks) WideAttention(const CudaProblem p) {
  constexpr int kKeys = S::kKeys, kColumns = S::kColumns;
  extern __shared__ __align__(128) char wide_tiles[];
  T* const shared_k = reinterpret_cast<T*>(wide_tiles);  // two of them, then two of the values; before them queries
  T* const shared_v = shared_k + 2 * S::kTile;
  auto& shares = *reinterpret_cast<float(*)[S::kShares][S::kRows][S::kWidthS]>(wide_tiles + S::kTiles);
  __shared__ KeySpot spots[2][kKeys];
  __shared__ CudaRow rows_of_tile[S::kRows];
  static_assert(S::kBytes + sizeof(spots) + sizeof(rows_of_tile) <= kWideBytes, "what rows ask of a device");

  BlockOfTiles block;
  if (!FindBlock<false>(p, S::kRows, kKeys, blockIdx.x, &block)) return;
  const auto& [kv, split, b, seq, queries, row0, keys] = block;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int band = warp % S::kBandsOfBlock * 16, share = warp / S::kBandsOfBlock;
  const int begin = keys.begin, end = keys.end;

  const auto find = [&](int stage, int j0) {
    if (threadIdx.x < kKeys) spots[stage][threadIdx.x] = SpotOf(p, seq, b, j0 + int(threadIdx.x), end);
  };
  const auto copy = [&](int stage) {
    CopyKeys<T, S::kD, S::kD, kKeys, S::kThreads>(shared_k + stage * S::kTile, spots[stage], p.k, p.k, kv, p.d_qk, 0);
    CopyKeys<T, S::kD, S::kD, kKeys, S::kThreads>(shared_v + stage * S::kTile, spots[stage], p.v, p.v, kv, p.d_v, 0);
    CommitCopies();
  };
  find(0, begin);
  CopyQueries<T, S>(shared_k, p, queries, b, kv, row0);
  CommitCopies();
  if (threadIdx.x < S::kRows) {
    rows_of_tile[threadIdx.x] = RowOf(p, queries, row0 + int(threadIdx.x), kv, seq.length);
  }
  WaitForCopies<0>();
  __syncthreads();
  uint32_t q[kColumns / 16][4];
#pragma unroll
  for (int n = 0; n < kColumns / 16; ++n) {
    LoadMatrices<false>(q[n], shared_k + (band + lane % 16) * S::kWidthQ + share * kColumns + n * 16 + lane / 16 * 8);
  }
  __syncthreads();
  copy(0);
  find(1, begin + kKeys);

  const int first = band + lane / 4;  // of this lane: rows `first` and 8 later
  const float unit = p.scale * (p.k_scale.data ? At(p.k_scale, kv) : 1.0f);
  float out[1][kColumns / 8][4] = {}, top[2] = {-HUGE_VALF, -HUGE_VALF}, sum[2] = {};

  for (int j0 = begin, stage = 0; j0 < end; j0 += kKeys, stage ^= 1) {
    WaitForCopies<0>();
    __syncthreads();  // this tile is there, the one before is done with
    if (j0 + kKeys < end) {
      copy(stage ^ 1);
      find(stage, j0 + 2 * kKeys);
    }
    Logits<S> z = {};
    MultiplyShare<T, S>(z, q, shared_k + stage * S::kTile, share, lane);
    AddShares<S>(z, shares, share, first, lane);
    const CudaRow rows[2] = {rows_of_tile[first], rows_of_tile[first + 8]};
    ToLogits<kKeys, kChanges>(z[0], p, rows, unit, b, j0, j0 + kKeys <= end, [&](int i) { return j0 + i < end; });
    float kept[2];
    Weigh<kKeys>(z[0], top, sum, kept);
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) out[0][n][i] *= kept[i / 2];
    }
    MultiplyValues<T, S>(out, z, shared_v + stage * S::kTile, share, lane);
  }
  WaitForCopies<0>();  // of a split without keys

  const CudaRow rows[2] = {rows_of_tile[first], rows_of_tile[first + 8]};
  const float value_unit = p.v_scale.data ? At(p.v_scale, kv) : 1.0f;
  WriteBand<T, kColumns>(p, queries, rows, b, split, out[0], top, sum, share * kColumns, value_unit);
}

template <class T, class S>
int32_t LaunchWideOf(const CudaProblem& p, void* stream) {
  const bool plain = p.softcap <= 0 && !p.slopes.data && !p.mask;
  return plain ? LaunchBlocks<&WideAttention<T, S, Changes::kScale>, S>(p, stream)
               : LaunchBlocks<&WideAttention<T, S, Changes::kAny>, S>(p, stream);
}
template <class T>
int32_t LaunchWide(const CudaProblem& p, void* stream) {
  return RowsOfWide(p) == kSlimRows ? LaunchWideOf<T, WideShape<kSlimRows>>(p, stream)
                                    : LaunchWideOf<T, WideShape<kTile>>(p, stream);
}

}  // namespace lz::attention
#endif  // __CUDACC__
