// Attention of up to 16 rows that share a KV head, in 16 bits, on CUDA: decode, and a few queries of grouped heads. A
// block takes the rows over a split of the keys; each of its warps has keys of its own, which it copies to shared
// memory some steps ahead and waits for alone, and multiplies all rows by them (mma.sync). The warps' sums are merged
// at the end; those of the splits by the cluster of their blocks, or by a second kernel. FP32 sums and softmax, weights
// rounded to 16 bits for the product with the values (class bf16-p). Source: own; split keys arXiv:2311.01282.
#pragma once

#include "kernels/attention/tile_cuda.h"
#include "kernels/attention/write_rows_cuda.h"

#ifdef __CUDACC__
namespace lz::attention {

// kKeys of a warp at once, kStages of them in shared memory.
template <int kD, int kKeysAtOnce, int kStagesAtOnce, int kWarpsOfBlock>
struct SlimShape : TileShape<kD, kD, kD, kKeysAtOnce, 1, 1, false> {
  static constexpr int kRows = kSlimRows, kStages = kStagesAtOnce, kWarps = kWarpsOfBlock, kWidth = kD + kChunk;
  static constexpr int kThreads = kWarps * kWarp;
  static constexpr int kStep = kWarps * kKeysAtOnce;            // keys of a block at once
  static constexpr int kK = kKeysAtOnce * kWidth;               // elements of a stage's keys, and of its values
  static constexpr int kTiles = 2 * kWarps * kStages * 2 * kK;  // bytes
  static constexpr int kOuts = 4 * kWarps * kRows * kD;         // bytes, after the last key
  static constexpr int kBytes = kTiles > kOuts ? kTiles : kOuts;
};

// Which of a warp's keys of one step exist, and where they are.
struct SlimSpot {
  int64_t k, v;  // elements from the first to key and value; of the prefix if `shared`
  int32_t there, shared;
};
__device__ inline SlimSpot SlimSpotOf(const CudaProblem& p, const CudaSequence& seq, int b, int kv, int j, int end) {
  if (j < p.shared && j < end) {
    return {j * p.shared_k.seq + kv * p.shared_k.head, j * p.shared_v.seq + kv * p.shared_v.head, 1, 1};
  }
  const KeySpot spot = SpotOf(p, seq, b, j - p.shared, end - p.shared);
  if (spot.page < 0) return {0, 0, 0, 0};
  return {spot.page * p.k.outer + spot.slot * p.k.seq + kv * p.k.head,
          spot.page * p.v.outer + spot.slot * p.v.seq + kv * p.v.head, 1, 0};
}

// Keys or values of a warp's step to shared memory, zeros for those that do not exist.
template <class T, class S, bool kValues>
__device__ void CopySlim(T* to, const SlimSpot* spots, const CudaProblem& p, int lane) {
  constexpr int kChunks = S::kDQ / kChunk;
  const int width = kValues ? p.d_v : p.d_qk;
  const T* own = static_cast<const T*>(kValues ? p.v.data : p.k.data);
  const T* prefix = static_cast<const T*>(kValues ? p.shared_v.data : p.shared_k.data);
#pragma unroll
  for (int i = 0; i < S::kKeys * kChunks / kWarp; ++i) {
    const int at = i * kWarp + lane, key = at / kChunks, column = at % kChunks * kChunk;
    const SlimSpot& spot = spots[key];
    const bool there = spot.there && column < width;
    const T* from = (spot.shared ? prefix : own) + (kValues ? spot.v : spot.k) + column;
    CopyAsync16(to + key * S::kWidth + column, there ? from : own, there ? 16 : 0);
  }
}

// kTogether: the splits of a tile are the blocks of a cluster. kChanges: see ToLogits.
template <class T, class S, bool kTogether, Changes kChanges>
__global__ void __launch_bounds__(S::kThreads) SlimAttention(const CudaProblem p) {
  constexpr int kKeys = S::kKeys, kStages = S::kStages, kD = S::kDQ;
  extern __shared__ __align__(128) char slim_tiles[];
  __shared__ SlimSpot spots[S::kWarps][kKeys];
  __shared__ float tops[S::kWarps][kSlimRows], sums[S::kWarps][kSlimRows];

  const int tiles = int((p.rows() + kSlimRows - 1) / kSlimRows);
  const int block = kTogether ? int(blockIdx.x) / p.splits : int(blockIdx.x);
  const int kv = block % p.h_kv, tile = block / p.h_kv % tiles, rest = block / p.h_kv / tiles;
  const int split = kTogether ? int(blockIdx.x) % p.splits : rest % p.splits, b = kTogether ? rest : rest / p.splits;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const CudaSequence seq = SequenceOf(p, b);
  const CudaQueries queries = QueriesOf(p, b);
  const int64_t row0 = int64_t(tile) * kSlimRows;
  const int64_t last_row = row0 + kSlimRows < p.rows() ? row0 + kSlimRows - 1 : p.rows() - 1;
  const CudaRange keys = KeysOf(p, queries, seq.length, row0, last_row, split, kKeys);
  const int begin = keys.begin + warp * kKeys, end = keys.end;
  T* const mine = reinterpret_cast<T*>(slim_tiles) + warp * kStages * 2 * S::kK;

  // Spots are found one step before the copies that need them.
  SlimSpot next = {};
  const auto find = [&](int j0) {
    if (lane < kKeys) next = SlimSpotOf(p, seq, b, kv, j0 + lane, end);
  };
  unsigned seen[kStages] = {};  // bit i: key i of that stage exists
  const auto copy = [&](int stage, int j0) {
    __syncwarp();  // what the lanes have waited for is there for all, what they have read may be overwritten
    const unsigned exist = __ballot_sync(0xffffffffu, lane < kKeys && next.there);
    if (lane < kKeys) spots[warp][lane] = next;
    __syncwarp();
    if (j0 < end) {
      T* const to = mine + stage * 2 * S::kK;
      CopySlim<T, S, false>(to, spots[warp], p, lane);
      CopySlim<T, S, true>(to + S::kK, spots[warp], p, lane);
    }
    CommitCopies();
    find(j0 + S::kStep);
    return exist;
  };
  find(begin);

  // Of this lane: rows g and g + 8, with their queries in the order of LoadMatrices.
  const int g = lane / 4, t = lane % 4;
  CudaRow rows[2] = {};
  uint32_t q[kD / 16][4] = {};
  const auto load_rows = [&] {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      rows[i] = RowOf(p, queries, row0 + g + 8 * i, kv, seq.length);
      const T* from = static_cast<const T*>(p.q.data) + Offset(p.q, p, queries, rows[i], b);
#pragma unroll
      for (int n = 0; n < kD / 8; ++n) {
        const int column = n * 8 + 2 * t;
        const bool there = rows[i].live && column < p.d_qk;
        q[n / 2][n % 2 * 2 + i] = there ? *reinterpret_cast<const uint32_t*>(from + column) : 0;
      }
    }
  };
  const float unit = p.scale * (p.k_scale.data ? At(p.k_scale, kv) : 1.0f);

  float out[1][kD / 8][4] = {}, top[2] = {-HUGE_VALF, -HUGE_VALF}, sum[2] = {};
  // The copies of the first stages are begun in the loop too: code of its own for them would be read from memory.
  constexpr int kAhead = (kStages - 1) * S::kStep;
  const int last = end > begin ? end : begin;  // rows are loaded where there are no keys too
  int stage = 0;
#pragma unroll 1
  for (int j0 = begin - kAhead; j0 < last; j0 += S::kStep) {
    if (j0 >= begin) WaitForCopies<kStages - 2>();
    const unsigned exist = seen[0];
#pragma unroll
    for (int s = 0; s + 1 < kStages; ++s) seen[s] = seen[s + 1];
    seen[kStages - 2] = copy(stage, j0 + kAhead);
    stage = stage + 1 == kStages ? 0 : stage + 1;
    if (j0 == begin - kAhead) load_rows();  // while the first keys are on their way
    if (j0 < begin) continue;
    const T* k = mine + stage * 2 * S::kK;

    Logits<S> z = {};
#pragma unroll
    for (int d = 0; d < kD / 16; ++d) {
#pragma unroll
      for (int n = 0; n < kKeys / 16; ++n) {
        uint32_t m[4];
        LoadMatrices<false>(m, k + (n * 16 + lane / 16 * 8 + lane % 8) * S::kWidth + d * 16 + lane / 8 % 2 * 8);
        Multiply<T>(z[0][2 * n], q[d], m[0], m[1]);
        Multiply<T>(z[0][2 * n + 1], q[d], m[2], m[3]);
      }
    }

    const bool full = exist == (kKeys == 32 ? 0xffffffffu : (1u << kKeys) - 1);
    ToLogits<kKeys, kChanges>(z[0], p, rows, unit, b, j0, full, [&](int i) { return (exist >> i & 1) != 0; });
    float kept[2];
    Weigh<kKeys>(z[0], top, sum, kept);
#pragma unroll
    for (int n = 0; n < kD / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) out[0][n][i] *= kept[i / 2];
    }
    MultiplyValues<T, S>(out, z, k + S::kK, 0, lane);
  }
  WaitForCopies<0>();

  __syncthreads();  // the stages become the warps' sums
  auto& outs = *reinterpret_cast<float(*)[S::kWarps][kSlimRows][kD]>(slim_tiles);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], 1);
    sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], 2);
    if (t == 0) tops[warp][g + 8 * i] = top[i], sums[warp][g + 8 * i] = sum[i];
    if (!rows[i].live) continue;
#pragma unroll
    for (int n = 0; n < kD / 8; ++n) {
      *reinterpret_cast<float2*>(&outs[warp][g + 8 * i][n * 8 + 2 * t]) =
          make_float2(out[0][n][2 * i], out[0][n][2 * i + 1]);
    }
  }
  WriteRows<kTogether>(p, seq, queries, {b, kv, split, row0}, outs, tops, sums);
}

template <class T, class S, Changes kChanges>
int32_t LaunchSlimFor(const CudaProblem& p, void* stream) {
  const int64_t blocks = TilesOf(p, kSlimRows) * p.splits * p.h_kv;
  if (blocks > 0x7fffffff) return CudaCode(cudaErrorInvalidValue);
  if (p.together > 1) {
    const auto clusters = unsigned(blocks / p.splits);
    constexpr auto kKernel = &SlimAttention<T, S, true, kChanges>;
    const auto error = LaunchClusters<kKernel>(clusters, p.splits, S::kThreads, S::kBytes, stream, p);
    return error == cudaSuccess ? LZ_LAUNCH_DONE : LZ_LAUNCH_REFUSED;  // parts in memory serve
  }
  constexpr auto kKernel = &SlimAttention<T, S, false, kChanges>;
  if (!HasShared<kKernel>(S::kBytes)) return LZ_LAUNCH_REFUSED;
  kKernel<<<unsigned(blocks), S::kThreads, S::kBytes, static_cast<cudaStream_t>(stream)>>>(p);
  return Launched();
}
template <class T, class S>
int32_t LaunchSlimOf(const CudaProblem& p, void* stream) {
  const bool plain = p.softcap <= 0 && !p.slopes.data && !p.mask;
  return plain ? LaunchSlimFor<T, S, Changes::kScale>(p, stream) : LaunchSlimFor<T, S, Changes::kAny>(p, stream);
}
template <class T>
int32_t LaunchSlim(const CudaProblem& p, void* stream) {
  const int d = p.d_qk > p.d_v ? p.d_qk : p.d_v;
  const auto either = [](int32_t code, auto&& smaller) { return code == LZ_LAUNCH_REFUSED ? smaller() : code; };
  if (d <= 64) {
    return either(LaunchSlimOf<T, SlimShape<64, 32, 2, 8>>(p, stream),
                  [&] { return LaunchSlimOf<T, SlimShape<64, 32, 2, 4>>(p, stream); });
  }
  if (d <= 128) {
    return either(LaunchSlimOf<T, SlimShape<128, 16, 3, 8>>(p, stream),
                  [&] { return LaunchSlimOf<T, SlimShape<128, 16, 2, 4>>(p, stream); });
  }
  return LaunchSlimOf<T, SlimShape<256, 16, 2, 4>>(p, stream);
}

}  // namespace lz::attention
#endif  // __CUDACC__
