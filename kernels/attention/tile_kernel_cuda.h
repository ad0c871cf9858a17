// Attention on CUDA by products of matrices in 16 bits: a block takes 64 rows that share a KV head over a split of the
// keys. A warp has 16 rows and, of wide values, half the columns. Sums, softmax and biases in FP32; weights are rounded
// to 16 bits for the product with the values (class bf16-p). Keys come while those before them are multiplied.
// Source: own; online softmax arXiv:1805.02867, split keys arXiv:2307.08691.
#pragma once

#include "kernels/attention/rows_cuda.h"
#include "kernels/mma_cuda.h"

#ifdef __CUDACC__
namespace lz::attention {

inline constexpr int kTileRows = 64;
inline constexpr int kChunk = 8;  // elements of 16 bytes; rows in shared memory are longer by one: no bank conflicts

// kDQ columns of keys, those from kMore on of a tensor of their own; kDV of values, kKeys at once. kHalves: warps that
// share 16 rows. kLatent: the first kDV columns of keys are the values.
template <int kColumnsQ, int kFirstOfMore, int kColumnsV, int kKeysAtOnce, int kWarpsOfRow, bool kValuesAreKeys>
struct TileShape {
  static constexpr int kDQ = kColumnsQ, kMore = kFirstOfMore, kDV = kColumnsV, kKeys = kKeysAtOnce;
  static constexpr int kHalves = kWarpsOfRow;
  static constexpr bool kLatent = kValuesAreKeys;
  static constexpr int kThreads = 4 * kWarp * kHalves;
  static constexpr int kWidthQ = kDQ + kChunk, kWidthV = kDV + kChunk;
  static constexpr int kQ = kTileRows * kWidthQ, kK = kKeys * kWidthQ, kV = kLatent ? 0 : kKeys * kWidthV;  // elements
  static constexpr int kWidthS = kKeys + 4;
  static constexpr int kLogits = kHalves > 1 ? kTileRows* kWidthS : 0;
  static constexpr int kBytes = 2 * (kQ + 2 * (kK + kV)) + 4 * kLogits;
  static constexpr int kOfWarp = kKeys / kHalves;  // keys whose logits a warp computes
  static_assert(kOfWarp % 16 == 0 && kDQ % 16 == 0 && kDV / kHalves % 16 == 0);
};

// Rows of a tile of keys to shared memory. `more`: columns from kDV on are of a second tensor.
template <class T, int kColumns, int kSplitAt, int kKeys, int kThreads>
__device__ void CopyKeys(T* to, const KeySpot* spots, const CudaRows& rows, const CudaRows& more, int kv, int width,
                         int more_width) {
  constexpr int kChunks = kColumns / kChunk;
  for (int i = threadIdx.x; i < kKeys * kChunks; i += kThreads) {
    const int key = i / kChunks, column = i % kChunks * kChunk;
    const KeySpot spot = spots[key];
    const bool second = column >= kSplitAt;
    const int at = second ? column - kSplitAt : column;
    const CudaRows& r = second ? more : rows;
    const bool there = spot.page >= 0 && at < (second ? more_width : width);
    const T* from = static_cast<const T*>(r.data) + (spot.page * r.outer + spot.slot * r.seq + kv * r.head + at);
    CopyAsync(to + key * (kColumns + kChunk) + column, there ? from : static_cast<const T*>(rows.data), there);
  }
}

template <class T, class S>
__global__ void __launch_bounds__(S::kThreads) TileAttention(const CudaProblem p) {
  constexpr int kDQ = S::kDQ, kDV = S::kDV, kKeys = S::kKeys, kHalves = S::kHalves;
  constexpr bool kLatent = S::kLatent;
  constexpr int kColumns = kDV / kHalves;  // of the output, for a warp
  T* const shared_q = reinterpret_cast<T*>(DynamicShared());
  T* const shared_k = shared_q + S::kQ;  // two of them, then two of the values
  T* const shared_v = shared_k + 2 * S::kK;
  float* const shared_z = reinterpret_cast<float*>(shared_v + 2 * S::kV);
  __shared__ KeySpot spots[2][kKeys];

  int64_t block = blockIdx.x;
  const int kv = int(block % p.h_kv);
  block /= p.h_kv;
  const int64_t all_tiles = TilesOf(p, kTileRows);
  int64_t tile = all_tiles - 1 - block % all_tiles;  // with causality the last of a sequence are the longest
  const int split = int(block / all_tiles);
  int b = 0;
  if (p.q_indptr) {
    if (!FindTile(p, kTileRows, &tile, &b)) return;
  } else {
    const int64_t tiles = all_tiles / p.b;
    b = int(tile / tiles);
    tile %= tiles;
  }
  const int warp = threadIdx.x / kWarp % 4, half = threadIdx.x / kWarp / 4, lane = threadIdx.x % kWarp;
  const CudaSequence seq = SequenceOf(p, b);
  const CudaQueries queries = QueriesOf(p, b);
  const int64_t row0 = tile * kTileRows, num_rows = int64_t(queries.count) * p.group;
  const int64_t last_row = row0 + kTileRows < num_rows ? row0 + kTileRows - 1 : num_rows - 1;
  const CudaRange low = VisibleTo(p, seq.length, seq.length - queries.count + row0 / p.group);
  const CudaRange high = VisibleTo(p, seq.length, seq.length - queries.count + last_row / p.group);
  int begin = low.begin, end = high.end;
  if (p.splits > 1) {
    const int steps = end > begin ? (end - begin + kKeys - 1) / kKeys : 0;
    const int share = (steps + p.splits - 1) / p.splits * kKeys;
    begin += split * share;
    end = end < begin + share ? end : begin + share;
  }

  const auto find = [&](int stage, int j0) {
    if (threadIdx.x < kKeys) spots[stage][threadIdx.x] = SpotOf(p, seq, b, j0 + int(threadIdx.x), end);
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
  for (int i = threadIdx.x; i < kTileRows * (kDQ / kChunk); i += S::kThreads) {
    const int r = i / (kDQ / kChunk), column = i % (kDQ / kChunk) * kChunk;
    const bool second = column >= S::kMore;
    const int at = second ? column - S::kMore : column, width = second ? p.d_more : p.d_qk - p.d_more;
    const CudaRows& q = second ? p.q_more : p.q;
    const int64_t row = row0 + r;
    const bool there = row < num_rows && at < width;
    const CudaRow of = {.index = int32_t(row / p.group), .head = kv * p.group + int32_t(row % p.group)};
    const T* from = static_cast<const T*>(q.data) + Offset(q, p, queries, of, b) + at;
    CopyAsync(shared_q + r * S::kWidthQ + column, there ? from : static_cast<const T*>(p.q.data), there);
  }
  __syncthreads();
  copy(0);
  find(1, begin + kKeys);

  // Of this lane: rows g and g + 8 of its warp's 16.
  const int g = lane / 4, t = lane % 4;
  CudaRow rows[2];
  for (int i = 0; i < 2; ++i) rows[i] = RowOf(p, queries, row0 + warp * 16 + g + 8 * i, kv, seq.length);
  const float unit = p.scale * (p.k_scale.data ? At(p.k_scale, kv) : 1.0f);
  float out[kColumns / 8][4] = {}, top[2] = {-HUGE_VALF, -HUGE_VALF}, sum[2] = {};

  for (int j0 = begin, stage = 0; j0 < end; j0 += kKeys, stage ^= 1) {
    WaitForCopies();
    __syncthreads();  // this tile is there, the one before is done with
    if (j0 + kKeys < end) {
      copy(stage ^ 1);
      find(stage, j0 + 2 * kKeys);
    }
    const T* k = shared_k + stage * S::kK;
    const T* v = kLatent ? k : shared_v + stage * S::kV;
    constexpr int kWidthV = kLatent ? S::kWidthQ : S::kWidthV;

    float z[kKeys / 8][4] = {};
    const int first = half * S::kOfWarp;
#pragma unroll
    for (int d = 0; d < kDQ; d += 16) {
      uint32_t a[4];
      LoadMatrices<false>(a, shared_q + (warp * 16 + lane % 16) * S::kWidthQ + d + lane / 16 * 8);
#pragma unroll
      for (int n = 0; n < S::kOfWarp / 16; ++n) {
        uint32_t m[4];
        LoadMatrices<false>(m, k + (first + n * 16 + lane / 16 * 8 + lane % 8) * S::kWidthQ + d + lane / 8 % 2 * 8);
        Multiply<T>(z[2 * n], a, m[0], m[1]);
        Multiply<T>(z[2 * n + 1], a, m[2], m[3]);
      }
    }
    if constexpr (kHalves > 1) {  // each warp of a row has the logits of some keys: all need all
      float* mine = shared_z + (warp * 16 + g) * S::kWidthS + 2 * t;
#pragma unroll
      for (int n = 0; n < S::kOfWarp / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) mine[i / 2 * 8 * S::kWidthS + first + n * 8 + i % 2] = z[n][i];
      }
      __syncthreads();
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) z[n][i] = mine[i / 2 * 8 * S::kWidthS + n * 8 + i % 2];
      }
    }

    // To logits: scaled, capped, biased, hidden.
    const auto each = [&](auto&& change) {
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) z[n][i] = change(rows[i / 2], z[n][i], j0 + n * 8 + 2 * t + i % 2);
      }
    };
    each([&](const CudaRow&, float x, int) { return x * unit; });
    if (p.softcap > 0) each([&](const CudaRow&, float x, int) { return Capped(p, x); });
    if (p.slopes.data) each([&](const CudaRow& r, float x, int j) { return Sloped(r, x, j); });
    if (p.mask) {
      each([&](const CudaRow& r, float x, int j) { return r.live && j < end ? Masked(p, r, x, b, j) : -HUGE_VALF; });
    }
    const bool all = rows[0].keys.begin <= j0 && rows[1].keys.begin <= j0 && j0 + kKeys <= rows[0].keys.end &&
                     j0 + kKeys <= rows[1].keys.end && j0 + kKeys <= end;
    if (!all) {
      each([&](const CudaRow& r, float x, int j) {
        return j < end && j >= r.keys.begin && j < r.keys.end ? x : -HUGE_VALF;
      });
    }
    float most[2] = {-HUGE_VALF, -HUGE_VALF};
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) most[i / 2] = fmaxf(most[i / 2], z[n][i]);
    }
    float base[2], kept[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      most[i] = fmaxf(most[i], __shfl_xor_sync(0xffffffffu, most[i], 1));
      most[i] = fmaxf(most[i], __shfl_xor_sync(0xffffffffu, most[i], 2));
      const float next = fmaxf(top[i], most[i]);
      base[i] = next == -HUGE_VALF ? 0.0f : next;
      kept[i] = FastExp(top[i] - base[i]);
      top[i] = next;
      sum[i] *= kept[i];
    }
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        z[n][i] = FastExp(z[n][i] - base[i / 2]);
        sum[i / 2] += z[n][i];
      }
    }
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) out[n][i] *= kept[i / 2];
    }
#pragma unroll
    for (int s = 0; s < kKeys / 16; ++s) {
      const uint32_t a[4] = {PackPair<T>(z[2 * s][0], z[2 * s][1]), PackPair<T>(z[2 * s][2], z[2 * s][3]),
                             PackPair<T>(z[2 * s + 1][0], z[2 * s + 1][1]),
                             PackPair<T>(z[2 * s + 1][2], z[2 * s + 1][3])};
#pragma unroll
      for (int n = 0; n < kColumns / 16; ++n) {
        uint32_t m[4];
        LoadMatrices<true>(m, v + (s * 16 + lane % 16) * kWidthV + half * kColumns + n * 16 + lane / 16 * 8);
        Multiply<T>(out[2 * n], a, m[0], m[1]);
        Multiply<T>(out[2 * n + 1], a, m[2], m[3]);
      }
    }
  }

  const float value_unit = p.v_scale.data ? At(p.v_scale, kv) : 1.0f;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], 1);
    sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], 2);
    if (!rows[i].live) continue;
    const RowResult r = ResultOf(p, queries, rows[i], b, split, top[i], sum[i]);
    if (t == 0 && half == 0) WriteLse(p, queries, rows[i], b, split, r);
    const float share = r.share * value_unit;
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
      const int column = half * kColumns + n * 8 + 2 * t;
      if (column >= p.d_v) continue;
      const float low = r.nothing ? 0.0f : out[n][2 * i] * share, high = r.nothing ? 0.0f : out[n][2 * i + 1] * share;
      if (p.part) {
        *reinterpret_cast<float2*>(p.part + r.part * p.d_v + column) = make_float2(low, high);
      } else {
        T* to = static_cast<T*>(const_cast<void*>(p.out.data)) + r.at + column;
        *reinterpret_cast<uint32_t*>(to) = PackPair<T>(low, high);
      }
    }
  }
}

template <class T, class S>
int32_t LaunchTileOf(const CudaProblem& p, void* stream) {
  const int64_t blocks = TilesOf(p, kTileRows) * p.splits * p.h_kv;
  if (blocks > 0x7fffffff) return CudaCode(cudaErrorInvalidValue);
  if (const int32_t code = AllowShared(&TileAttention<T, S>, S::kBytes)) return code;
  TileAttention<T, S><<<unsigned(blocks), S::kThreads, S::kBytes, static_cast<cudaStream_t>(stream)>>>(p);
  return Launched();
}
template <class T>
int32_t LaunchTiles(const CudaProblem& p, void* stream) {
  if (p.latent) return LaunchTileOf<T, TileShape<576, 512, 512, 32, 2, true>>(p, stream);
  if (p.d_more > 0) return LaunchTileOf<T, TileShape<192, 128, 128, 64, 1, false>>(p, stream);
  const int d = p.d_qk > p.d_v ? p.d_qk : p.d_v;
  if (d <= 64) return LaunchTileOf<T, TileShape<64, 64, 64, 64, 1, false>>(p, stream);
  if (d <= 128) return LaunchTileOf<T, TileShape<128, 128, 128, 64, 1, false>>(p, stream);
  return LaunchTileOf<T, TileShape<256, 256, 256, 32, 1, false>>(p, stream);
}

}  // namespace lz::attention
#endif  // __CUDACC__
