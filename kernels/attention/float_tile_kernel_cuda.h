// Attention of many rows in FP32 on CUDA: a block takes 16 to 64 rows that share a KV head over a split of the keys,
// which come to shared memory (cp.async) 32 at a time: the next keys while values are multiplied, the next values while
// weights are computed. A warp has rows of its own: of their logits a lane has those of one key, of their outputs some
// columns. Multiply-adds and softmax in FP32 (class fp32, no TF32); a weight that is hidden multiplies nothing, so that
// hidden NaN do not show. Source: own; online softmax arXiv:1805.02867, split keys arXiv:2307.08691.
#pragma once

#include "kernels/attention/map_cuda.h"
#include "kernels/attention/tile_cuda.h"
#include "kernels/attention/write_rows_cuda.h"

#ifdef __CUDACC__
namespace lz::attention {

// kColumnsQ and kColumnsV: the most columns of keys and of values. kValuesAreKeys: those are the first of these.
template <int kColumnsQ, int kColumnsV, int kWarpsOfBlock, int kRowsOfOne, bool kValuesAreKeys = false>
struct FloatShape {
  static constexpr int kDQ = kColumnsQ, kDV = kColumnsV, kRowsOfWarp = kRowsOfOne;
  static constexpr int kRows = kWarpsOfBlock * kRowsOfWarp, kThreads = kWarpsOfBlock * kWarp, kKeys = kWarp;
  static constexpr bool kLatent = kValuesAreKeys;
  static constexpr int kWidthK = kDQ + 4, kWidthV = kLatent ? kWidthK : kDV;  // keys: no bank conflicts of the lanes
  static constexpr int kQ = kRows * kDQ, kK = kKeys * kWidthK, kV = kLatent ? 0 : kKeys * kWidthV;
  static constexpr int kBytes = 4 * (kQ + kK + kV + kRows * kKeys);
  static constexpr int kColumns = kDV / kWarp, kVector = kColumns < 4 ? kColumns : 4;  // of a lane; of them in a row
  static_assert(kBytes >= 4 * kRows * kDV);
};

template <int kN>
__device__ Vector<float, kN> LoadFloats(const float* at) {
  return *reinterpret_cast<const Vector<float, kN>*>(at);
}

// Keys or values of a step to shared memory, zeros for those that do not exist.
template <class S, bool kValues>
__device__ void CopyFloats(float* to, const KeySpot* spots, const CudaProblem& p, int kv) {
  constexpr int kChunks = (kValues ? S::kDV : S::kDQ) / 4;
  const int width = kValues ? p.d_v : p.d_qk, first_of_more = kValues ? width : width - p.d_more;
  for (int i = threadIdx.x; i < S::kKeys * kChunks; i += S::kThreads) {
    const int key = i / kChunks, column = i % kChunks * 4;
    if (column >= width) continue;
    const bool more = column >= first_of_more;
    const CudaRows& rows = kValues ? p.v : more ? p.k_more : p.k;
    const KeySpot spot = spots[key];
    const bool there = spot.page >= 0;
    const int64_t at = spot.page * rows.outer + spot.slot * rows.seq + kv * rows.head;
    const float* from = static_cast<const float*>(rows.data);
    if (there) from += at + (more ? column - first_of_more : column);
    CopyAsync16(to + key * (kValues ? S::kWidthV : S::kWidthK) + column, from, there ? 16 : 0);
  }
  CommitCopies();
}

// The queries of a tile times the factor of the logits, zeros where there is none.
template <class S>
__device__ void LoadFloatQueries(float* to, const CudaProblem& p, const CudaRow* rows, const CudaQueries& queries,
                                 int b, int kv) {
  const float unit = p.scale * (p.k_scale.data ? At(p.k_scale, kv) : 1.0f);
  const int first_of_more = p.d_qk - p.d_more;
  for (int i = threadIdx.x; i < S::kRows * S::kDQ; i += S::kThreads) {
    const CudaRow& row = rows[i / S::kDQ];
    const int column = i % S::kDQ;
    if (column >= p.d_qk) continue;
    const bool more = column >= first_of_more;
    const CudaRows& q = more ? p.q_more : p.q;
    const int64_t at = Offset(q, p, queries, row, b) + (more ? column - first_of_more : column);
    to[i] = row.live ? unit * LoadFloating(q.data, at, p.type) : 0.0f;
  }
}

// Keys that a warp's rows see, from the first row's first to the last one's last.
template <int kRows>
__device__ CudaRange SeenBy(const CudaRow* rows) {
  CudaRange seen = {};
  for (int r = 0; r < kRows && rows[r].live; ++r) seen = {r == 0 ? rows[0].keys.begin : seen.begin, rows[r].keys.end};
  return seen;
}

// The logits of a warp's rows and a step's keys become weights, of hidden keys -1; the sums before are lowered to the
// new largest logits. Whether no row has a hidden key.
template <class S>
__device__ bool WeighFloats(float* weights, const float* q, const float* k, const CudaProblem& p, const CudaRow* rows,
                            int b, int j, bool there, float (&top)[S::kRowsOfWarp], float (&sum)[S::kRowsOfWarp],
                            float (&out)[S::kRowsOfWarp][S::kColumns]) {
  constexpr int kR = S::kRowsOfWarp;
  const int lane = threadIdx.x % kWarp;
  float z[kR] = {};
#pragma unroll 1
  for (int d = 0; d < p.d_qk; d += 4) {
    const auto key = LoadFloats<4>(k + lane * S::kWidthK + d);
#pragma unroll
    for (int r = 0; r < kR; ++r) {
      const auto query = LoadFloats<4>(q + r * S::kDQ + d);
#pragma unroll
      for (int e = 0; e < 4; ++e) z[r] += query.v[e] * key.v[e];
    }
  }
  bool hides = false;
#pragma unroll
  for (int r = 0; r < kR; ++r) {
    const CudaRow& row = rows[r];
    const bool visible = row.live && there && j >= row.keys.begin && j < row.keys.end;
    if (p.softcap > 0) z[r] = Capped(p, z[r]);
    if (p.slopes.data) z[r] = Sloped(row, z[r], j);
    if (p.mask && visible) z[r] = Masked(p, row, z[r], b, j);
    z[r] = visible ? z[r] : -HUGE_VALF;
    float most = z[r];
#pragma unroll
    for (int step = kWarp / 2; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
    const float next = fmaxf(top[r], most), base = next == -HUGE_VALF ? 0.0f : next;
    const float kept = FastExp(top[r] - base);
    const bool hidden = z[r] == -HUGE_VALF;
    const float weight = hidden ? -1.0f : FastExp(z[r] - base);
    top[r] = next;
    sum[r] = sum[r] * kept + (hidden ? 0.0f : weight);
    hides |= hidden && row.live;
    weights[r * S::kKeys + lane] = weight;
#pragma unroll
    for (int n = 0; n < S::kColumns; ++n) out[r][n] *= kept;
  }
  return !__any_sync(0xffffffffu, hides);
}

// Adds weights times values. kPlain: no key is hidden, else 0 times NaN would be NaN.
template <class S, bool kPlain>
__device__ void AddFloatValues(float (&out)[S::kRowsOfWarp][S::kColumns], const float* weights, const float* v) {
  constexpr int kR = S::kRowsOfWarp, kVector = S::kVector;
  const int lane = threadIdx.x % kWarp;
#pragma unroll 1
  for (int j = 0; j < S::kKeys; j += 4) {
    Vector<float, 4> w[kR];
#pragma unroll
    for (int r = 0; r < kR; ++r) w[r] = LoadFloats<4>(weights + r * S::kKeys + j);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int n = 0; n < S::kColumns; n += kVector) {
        const auto x = LoadFloats<kVector>(v + (j + i) * S::kWidthV + n * kWarp + lane * kVector);
#pragma unroll
        for (int r = 0; r < kR; ++r) {
          if (!kPlain && w[r].v[i] < 0) continue;
#pragma unroll
          for (int e = 0; e < kVector; ++e) out[r][n + e] += w[r].v[i] * x.v[e];
        }
      }
    }
  }
}

// kMapped: with a map of blocks.
template <class S, bool kMapped>
__global__ void __launch_bounds__(S::kThreads, 2) FloatTileAttention(const CudaProblem p) {
  constexpr int kKeys = S::kKeys, kR = S::kRowsOfWarp;
  extern __shared__ __align__(128) char float_tiles[];
  float* const shared_q = reinterpret_cast<float*>(float_tiles);
  float *const k = shared_q + S::kQ, *const v = S::kLatent ? k : k + S::kK;
  float* const shared_weights = k + S::kK + S::kV;
  __shared__ KeySpot spots[2][kKeys];
  __shared__ CudaRow rows_of_tile[S::kRows];
  __shared__ float tops[1][S::kRows], sums[1][S::kRows];

  BlockOfTiles block;
  if (!FindBlock<kMapped>(p, S::kRows, kKeys, blockIdx.x, &block)) return;
  const auto& [kv, split, b, seq, queries, row0, keys] = block;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int begin = keys.begin, end = keys.end, mine = threadIdx.x;
  MapWalk walk;
  const auto find = [&](int stage, int j0) {
    if (warp != 0) return;
    if constexpr (kMapped) {
      const int32_t key = walk.Key(p, kv, b, j0 + lane, end);
      spots[stage][lane] = {key < 0 ? -1 : 0, key};
    } else {
      spots[stage][lane] = SpotOf(p, seq, b, j0 + lane, end);
    }
  };
  find(0, begin);
  if (mine < S::kRows) rows_of_tile[mine] = RowOf(p, queries, row0 + mine, kv, seq.length);
  __syncthreads();
  CopyFloats<S, false>(k, spots[0], p, kv);
  if constexpr (!S::kLatent) CopyFloats<S, true>(v, spots[0], p, kv);
  find(1, begin + kKeys);
  LoadFloatQueries<S>(shared_q, p, rows_of_tile, queries, b, kv);
  WaitForCopies<S::kLatent ? 0 : 1>();
  __syncthreads();

  const CudaRow* const rows = rows_of_tile + warp * kR;
  const CudaRange seen = SeenBy<kR>(rows);
  const float* const q = shared_q + warp * kR * S::kDQ;
  float* const weights = shared_weights + warp * kR * kKeys;
  float out[kR][S::kColumns] = {}, top[kR], sum[kR] = {};
#pragma unroll
  for (int r = 0; r < kR; ++r) top[r] = -HUGE_VALF;

  for (int j0 = begin, stage = 0; j0 < end; j0 += kKeys, stage ^= 1) {
    const bool works = j0 < seen.end && j0 + kKeys > seen.begin, goes_on = j0 + kKeys < end;
    const bool there = spots[stage][lane].page >= 0;
    const bool plain = works && WeighFloats<S>(weights, q, k, p, rows, b, j0 + lane, there, top, sum, out);
    WaitForCopies<0>();
    __syncthreads();  // the values are there, the keys are done with
    if (goes_on) {
      if constexpr (!S::kLatent) CopyFloats<S, false>(k, spots[stage ^ 1], p, kv);
      find(stage, j0 + 2 * kKeys);
    }
    if (plain) AddFloatValues<S, true>(out, weights, v);
    if (works && !plain) AddFloatValues<S, false>(out, weights, v);
    WaitForCopies<0>();
    __syncthreads();  // the next keys are there, the values are done with
    if (!goes_on) break;
    CopyFloats<S, !S::kLatent>(v, spots[stage ^ 1], p, kv);
    if constexpr (S::kLatent) {
      WaitForCopies<0>();
      __syncthreads();
    }
  }
  WaitForCopies<0>();  // of a split without keys
  __syncthreads();     // the tiles become the outputs
  auto& outs = *reinterpret_cast<float(*)[1][S::kRows][S::kDV]>(float_tiles);
#pragma unroll
  for (int r = 0; r < kR; ++r) {
#pragma unroll
    for (int step = kWarp / 2; step > 0; step /= 2) sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], step);
    if (lane == 0) tops[0][warp * kR + r] = top[r], sums[0][warp * kR + r] = sum[r];
#pragma unroll
    for (int n = 0; n < S::kColumns; ++n) {
      outs[0][warp * kR + r][n / S::kVector * S::kVector * kWarp + lane * S::kVector + n % S::kVector] = out[r][n];
    }
  }
  WriteRows(p, seq, queries, {b, kv, split, row0}, outs, tops, sums);
}

// Shapes of as many rows as CutOfFloatTiles says.
template <bool kMapped>
int32_t LaunchFloatTiles(const CudaProblem& p, void* stream) {
  const auto launch = [&](auto shape) {
    using S = decltype(shape);
    return LaunchBlocks<&FloatTileAttention<S, kMapped>, S>(p, stream);
  };
  if constexpr (!kMapped) {
    if (p.latent) return launch(FloatShape<576, 512, 4, 4, true>{});
    if (p.d_more > 0) return launch(FloatShape<192, 128, 4, 8>{});
  }
  const int d = p.d_qk > p.d_v ? p.d_qk : p.d_v;
  if (d <= 64) return launch(FloatShape<64, 64, 8, 8>{});
  if (d <= 128) return launch(FloatShape<128, 128, 8, 8>{});
  return launch(FloatShape<256, 256, 4, 8>{});
}

}  // namespace lz::attention
#endif  // __CUDACC__
