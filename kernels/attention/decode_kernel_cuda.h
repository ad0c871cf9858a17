// Attention of few rows on CUDA: a block takes rows that share a KV head over a split of the keys. Some lanes of a warp
// share a key, 8 elements each; every key is read once for all rows of the block, several keys of each lane at a time.
// FP32 throughout; online softmax arXiv:1805.02867, split keys arXiv:2311.01282. Source: own. Packed queries have as
// many blocks as rows need: a prefill over caches of other dtypes, or where hidden NaN must not show.
#pragma once

#include "kernels/attention/lanes_cuda.h"
#include "kernels/attention/write_rows_cuda.h"

#ifdef __CUDACC__
namespace lz::attention {

// Elements of this lane of the rows from row0 on, times the factor of the logits.
template <int kRows>
__device__ void LoadQueries(float (&q)[kRows][kLaneElements], const CudaProblem& p, const CudaQueries& queries, int b,
                            int kv, int64_t row0, int lane) {
  const float unit = p.scale * (p.k_scale.data ? At(p.k_scale, kv) : 1.0f);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int64_t row = row0 + r, first = lane * kLaneElements;
    const int64_t before = p.q_indptr ? queries.first * p.q.seq : b * p.q.outer;
    const int64_t at = before + row / p.group * p.q.seq + (kv * p.group + row % p.group) * p.q.head + first;
#pragma unroll
    for (int e = 0; e < kLaneElements; ++e) {
      q[r][e] =
          row < int64_t(queries.count) * p.group && first < p.d_qk ? unit * LoadFloat(p.q.data, at + e, p.type) : 0.0f;
    }
  }
}

// kPacked: queries are packed, keys are too or in pages.
template <class K, int kRows, int kLanes, bool kPacked>
__global__ void __launch_bounds__(kDecodeThreads) Decode(const CudaProblem p) {
  using S = DecodeShape<kRows, kLanes>;
  constexpr int kKeys = S::kKeys, kN = kLaneElements;
  using Lanes = Vector<K, kN>;
  __shared__ float outs[S::kGroups][kRows][kLanes * kN];
  __shared__ float tops[S::kGroups][kRows], sums[S::kGroups][kRows];

  int64_t block = blockIdx.x;
  const int kv = int(block % p.h_kv);
  block /= p.h_kv;
  int64_t tile;
  int split, b;
  if constexpr (kPacked) {
    const int64_t tiles = TilesOf(p, kRows);
    tile = tiles - 1 - block % tiles;  // with causality the last of a sequence are the longest
    split = int(block / tiles);
    if (!FindTile(p, kRows, &tile, &b)) return;
  } else {
    const int tiles = int((p.rows() + kRows - 1) / kRows);
    tile = block % tiles;
    block /= tiles;
    split = int(block % p.splits), b = int(block / p.splits);
  }
  const int lane = threadIdx.x % kLanes, group = threadIdx.x / kLanes;
  const int warp_lane = int(threadIdx.x) % kWarp - lane;  // of the group's first lane
  const CudaSequence seq = SequenceOf(p, b);
  const CudaQueries queries = QueriesOf(p, b);
  const int64_t row0 = tile * kRows, num_rows = int64_t(queries.count) * p.group;

  const int64_t last_row = row0 + kRows < num_rows ? row0 + kRows - 1 : num_rows - 1;
  const CudaRange keys = KeysOf(p, queries, seq.length, row0, last_row, split, S::kStep);
  const int begin = keys.begin, end = keys.end;

  float q[kRows][kN];
  LoadQueries(q, p, queries, b, kv, row0, lane);
  const int my_row = lane / S::kLanesOfRow;
  const CudaRow row = RowOf(p, queries, row0 + my_row, kv, seq.length);

  // Page numbers are read one step ahead: keys wait for them.
  const bool has_k = lane * kN < p.d_qk, has_v = lane * kN < p.d_v;
  const K* first_k = static_cast<const K*>(p.k.data) + kv * p.k.head + lane * kN;
  const K* first_v = static_cast<const K*>(p.v.data) + kv * p.v.head + lane * kN;
  const auto page_of = [&](int j) -> int32_t {
    if (j >= end) return -1;
    if (j < p.shared) return 0;
    if (p.paging == CudaPaging::kNone) return b;
    if (kPacked && p.paging == CudaPaging::kPacked) return 0;
    const int own = j - p.shared;
    const int entry = p.page_shift >= 0 ? own >> p.page_shift : own / p.page_size;
    const int64_t page = LoadIndex(p.pages, seq.pages + entry * p.pages_stride, p.wide_pages);
    return page >= 0 && page < p.num_pages ? int32_t(page) : -1;
  };
  int32_t page[kKeys];
#pragma unroll
  for (int u = 0; u < kKeys; ++u) page[u] = page_of(begin + u * S::kGroups + group);

  float acc[kRows][kN] = {}, top = -HUGE_VALF, sum = 0;
  for (int j0 = begin; j0 < end; j0 += S::kStep) {
    Lanes k[kKeys], v[kKeys];
    unsigned seen = 0;
#pragma unroll
    for (int u = 0; u < kKeys; ++u) {
      const int j = j0 + u * S::kGroups + group;
      const bool there = page[u] >= 0;
      int slot = j - p.shared;
      if (kPacked && p.paging == CudaPaging::kPacked) {
        slot += int(seq.pages);
      } else if (p.paging != CudaPaging::kNone) {
        slot = p.page_shift >= 0 ? slot & ((1 << p.page_shift) - 1) : slot % p.page_size;
      }
      const K* at_k = first_k + (page[u] * p.k.outer + slot * p.k.seq);
      const K* at_v = first_v + (page[u] * p.v.outer + slot * p.v.seq);
      if (j < p.shared) {
        at_k = static_cast<const K*>(p.shared_k.data) + j * p.shared_k.seq + kv * p.shared_k.head + lane * kN;
        at_v = static_cast<const K*>(p.shared_v.data) + j * p.shared_v.seq + kv * p.shared_v.head + lane * kN;
      }
      k[u] = v[u] = {};
      if (there && has_k) k[u] = *reinterpret_cast<const Lanes*>(at_k);
      if (there && has_v) v[u] = *reinterpret_cast<const Lanes*>(at_v);
      seen |= unsigned(there) << u;
    }
#pragma unroll
    for (int u = 0; u < kKeys; ++u) page[u] = page_of(j0 + S::kStep + u * S::kGroups + group);

    float z[S::kLogits];
#pragma unroll
    for (int u = 0; u < kKeys; ++u) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) z[r * kKeys + u] = 0;
#pragma unroll
      for (int e = 0; e < kN; ++e) {
        const float x = CacheFloat(k[u].v[e]);
#pragma unroll
        for (int r = 0; r < kRows; ++r) z[r * kKeys + u] += q[r][e] * x;
      }
    }
    SumAndScatter<S::kLogits, kLanes>(z, lane);

    float most = -HUGE_VALF;
#pragma unroll
    for (int i = 0; i < S::kLogitsOfLane; ++i) {
      const int u = lane % S::kLanesOfRow / S::kLanesOfLogit * S::kLogitsOfLane + i;
      const int j = j0 + u * S::kGroups + group;
      const bool visible = row.live && (seen >> u & 1) && j >= row.keys.begin && j < row.keys.end;
      if (p.softcap > 0) z[i] = Capped(p, z[i]);
      if (p.slopes.data) z[i] = Sloped(row, z[i], j);
      if (p.mask && visible) z[i] = Masked(p, row, z[i], b, j);
      z[i] = visible ? z[i] : -HUGE_VALF;
      most = fmaxf(most, z[i]);
    }
#pragma unroll
    for (int step = S::kLanesOfRow / 2; step >= S::kLanesOfLogit; step /= 2) {
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
    }
    const float next = fmaxf(top, most), base = next == -HUGE_VALF ? 0.0f : next;
    const float kept = FastExp(top - base);
    top = next;
    sum *= kept;
    bool hides = false;
#pragma unroll
    for (int i = 0; i < S::kLogitsOfLane; ++i) {
      const bool hidden = z[i] == -HUGE_VALF;
      z[i] = hidden ? -1.0f : FastExp(z[i] - base);  // a weight below 0: not one
      sum += hidden ? 0.0f : z[i];
      hides |= hidden && row.live;
    }
    const bool plain = !__any_sync(0xffffffffu, hides);

#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float factor = __shfl_sync(0xffffffffu, kept, warp_lane + r * S::kLanesOfRow);
#pragma unroll
      for (int e = 0; e < kN; ++e) acc[r][e] *= factor;
    }
#pragma unroll
    for (int u = 0; u < kKeys; ++u) {
      float x[kN];
#pragma unroll
      for (int e = 0; e < kN; ++e) x[e] = CacheFloat(v[u].v[e]);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const int from = (r * kKeys + u) / S::kLogitsOfLane * S::kLanesOfLogit;
        const float w = __shfl_sync(0xffffffffu, z[u % S::kLogitsOfLane], warp_lane + from);
        if (plain || !(w < 0)) {  // 0 times NaN would be NaN
#pragma unroll
          for (int e = 0; e < kN; ++e) acc[r][e] += w * x[e];
        }
      }
    }
  }

  // The groups' sums become the block's.
#pragma unroll
  for (int step = S::kLanesOfRow / 2; step >= S::kLanesOfLogit; step /= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, step);
  }
  if (lane % S::kLanesOfRow == 0) tops[group][my_row] = top, sums[group][my_row] = sum;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int e = 0; e < kN; ++e) outs[group][r][lane * kN + e] = acc[r][e];
  }
  WriteRows(p, seq, queries, {b, kv, split, row0}, outs, tops, sums);
}

template <class K, int kRows, int kLanes, bool kPacked>
int32_t LaunchDecodeOf(const CudaProblem& p, void* stream) {
  const int64_t blocks = TilesOf(p, kRows) * p.splits * p.h_kv;
  if (blocks > 0x7fffffff) return CudaCode(cudaErrorInvalidValue);
  Decode<K, kRows, kLanes, kPacked><<<unsigned(blocks), kDecodeThreads, 0, static_cast<cudaStream_t>(stream)>>>(p);
  return Launched();
}
template <class K, int kRows, bool kPacked = false>
int32_t LaunchDecodeRows(const CudaProblem& p, void* stream) {
  const int d = p.d_qk > p.d_v ? p.d_qk : p.d_v;
  if (d <= 64) return LaunchDecodeOf<K, kRows, 8, kPacked>(p, stream);
  if (d <= 128) return LaunchDecodeOf<K, kRows, 16, kPacked>(p, stream);
  return LaunchDecodeOf<K, kRows, 32, kPacked>(p, stream);
}
template <class K>
int32_t LaunchDecode(const CudaProblem& p, void* stream) {
  if (p.q_indptr) return LaunchDecodeRows<K, kPackedRows, true>(p, stream);
  switch (CutOfFew(p).rows) {
    case 1: return LaunchDecodeRows<K, 1>(p, stream);
    case 4: return LaunchDecodeRows<K, 4>(p, stream);
    default: return LaunchDecodeRows<K, 8>(p, stream);
  }
}

}  // namespace lz::attention
#endif  // __CUDACC__
