// What own CUDA kernels of attention share on the device: sequences and pages, what a row sees, biases and masks of its
// logits, and its result.
#pragma once

#include "kernels/attention/splits_cuda.h"

#ifdef __CUDACC__
namespace lz::attention {

inline constexpr float kLog2E = 1.4426950408889634f;
// 2^x, e^x and 1 / x, by the device's functions; off by a few units of the last place.
__device__ inline float FastExp2(float x) {
#ifdef __CUDA_ARCH__
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
#else
  return exp2f(x);
#endif
}
__device__ inline float FastExp(float x) { return FastExp2(x * kLog2E); }
__device__ inline float FastReciprocal(float x) {
#ifdef __CUDA_ARCH__
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(x));
  return inverse;
#else
  return 1 / x;
#endif
}

__device__ inline float At(const CudaVector& t, int h) { return LoadFloating(t.data, h * t.stride, t.type); }

// Keys of a sequence and where its page list begins.
struct CudaSequence {
  int64_t length, pages;  // of packed keys: the first of them
};
__device__ inline CudaSequence SequenceOf(const CudaProblem& p, int b) {
  if (b >= p.b) return {0, 0};  // of packed queries that belong to none
  if (p.paging == CudaPaging::kNone) return {p.s_kv + p.shared, 0};
  int64_t first = 0, count = p.num_indices, length, said = 0;
  if (p.paging != CudaPaging::kPacked) {
    said = p.lengths ? LoadIndex(p.lengths, b * p.lengths_stride, p.wide_lengths) : p.page_size;
  }
  if (p.paging != CudaPaging::kTable) {  // limited to the list, whatever the offsets are
    first = LoadIndex(p.indptr, b * p.indptr_stride, p.wide_indptr);
    int64_t end = LoadIndex(p.indptr, (b + 1) * p.indptr_stride, p.wide_indptr);
    first = first < 0 ? 0 : first;
    end = end > p.num_indices ? p.num_indices : end;
    count = end - first;
    if (p.paging == CudaPaging::kPacked) return {count > 0 ? count : 0, first};
    length = count > 0 ? (count - 1) * p.page_size + said : 0;
  } else {
    length = said;
  }
  const int64_t most = count > 0 ? count * p.page_size : 0;
  length = length < 0 ? 0 : length > most ? most : length;
  return {length + p.shared, p.paging == CudaPaging::kCsr ? first * p.pages_stride : b * p.table_stride};
}

struct CudaRange {
  int32_t begin, end;
};
// Keys that the row at `position` sees.
__device__ inline CudaRange VisibleTo(const CudaProblem& p, int64_t length, int64_t position) {
  int64_t end = length, begin = 0;  // at most kMostKeys
  if (p.causal || p.window >= 0) end = position + 1 < 0 ? 0 : position + 1 < length ? position + 1 : length;
  if (p.window >= 0 && p.window <= position) begin = position - p.window + 1;
  return {int32_t(begin < end ? begin : end), int32_t(end)};
}

// Queries of one sequence: their number, and that of the first among all.
struct CudaQueries {
  int32_t count;
  int64_t first;
};
__device__ inline CudaQueries QueriesOf(const CudaProblem& p, int b) {
  if (!p.q_indptr) return {p.s_q, int64_t(b) * p.s_q};
  const auto offset = [&](int i) {  // limited to the tensor
    const int64_t at = i > p.b ? p.total_q : LoadIndex(p.q_indptr, i * p.q_indptr_stride, p.wide_q_indptr);
    return at < 0 ? 0 : at > p.total_q ? p.total_q : at;
  };
  const int64_t first = offset(b), end = offset(b + 1);
  return {int32_t(end > first ? end - first : 0), first};
}

// The tile'th tile of packed queries: its sequence and its number among the sequence's; sequence p.b: queries of none.
// Called by whole warps. False after the last.
__device__ inline bool FindTile(const CudaProblem& p, int64_t rows, int64_t* tile, int* b) {
  const int lane = threadIdx.x % kWarp;
  for (int from = 0; from <= p.b; from += kWarp) {
    int64_t tiles = 0;
    if (from + lane <= p.b) tiles = (int64_t(QueriesOf(p, from + lane).count) * p.group + rows - 1) / rows;
    int64_t before = 0, all = 0;
    for (int i = 0; i < kWarp; ++i) {
      const int64_t of = __shfl_sync(0xffffffffu, tiles, i);
      before += i < lane ? of : 0;
      all += of;
    }
    if (*tile >= all) {
      *tile -= all;
      continue;
    }
    const bool mine = *tile >= before && *tile < before + tiles;
    int found = mine ? lane : -1;
    for (int step = kWarp / 2; step > 0; step /= 2) {
      const int other = __shfl_xor_sync(0xffffffffu, found, step);
      found = other > found ? other : found;
    }
    *tile -= __shfl_sync(0xffffffffu, before, found);
    *b = from + found;
    return true;
  }
  return false;
}

// Of a row of a sequence, which are fewer than 2^32 (RunTiles): its position among the queries, and its head of those
// that share a KV head. 64-bit division takes several times as many instructions.
__device__ inline int32_t IndexOf(const CudaProblem& p, int64_t row) {
  return int32_t(uint32_t(row) / uint32_t(p.group));
}
__device__ inline int32_t HeadOf(const CudaProblem& p, int64_t row) {
  return int32_t(uint32_t(row) % uint32_t(p.group));
}

// One of the block's rows, as the lanes know it that hold its logits.
struct CudaRow {
  int32_t index, head;  // position among the queries
  int32_t position;     // among the keys
  CudaRange keys;
  float slope, base;  // distances count from `base`, which is that of the key with the largest distance bias
  bool live;
};
__device__ inline CudaRow RowOf(const CudaProblem& p, const CudaQueries& q, int64_t row, int kv, int64_t length) {
  CudaRow r = {.live = row < int64_t(q.count) * p.group};
  r.index = r.live ? IndexOf(p, row) : 0;
  r.head = kv * p.group + (r.live ? HeadOf(p, row) : 0);
  r.position = int32_t(length - q.count + r.index);
  r.keys = VisibleTo(p, length, r.position);
  if (!p.slopes.data || r.keys.begin >= r.keys.end) return r;
  r.slope = At(p.slopes, r.head);
  const int32_t first = r.position - r.keys.begin, last = r.position - (r.keys.end - 1);  // first >= last
  if (r.slope >= 0) {
    r.base = float(last > 0 ? last : first < 0 ? -first : 0);
  } else {
    r.base = float(first > -last ? first : -last);
  }
  return r;
}

__device__ inline float Capped(const CudaProblem& p, float z) { return p.softcap * tanhf(z / p.softcap); }
__device__ inline float Sloped(const CudaRow& r, float z, int j) {
  return z - r.slope * (fabsf(float(r.position - j)) - r.base);
}
__device__ inline float Masked(const CudaProblem& p, const CudaRow& r, float z, int b, int j) {
  const int64_t at =
      b * p.mask_strides[0] + r.head * p.mask_strides[1] + r.index * p.mask_strides[2] + int64_t(j) * p.mask_strides[3];
  if (p.mask_type == DType::kBool) return static_cast<const bool*>(p.mask)[at] ? z : -HUGE_VALF;
  const float added = LoadFloating(p.mask, at, p.mask_type);
  return added == -HUGE_VALF ? added : z + added;
}

// The keys that some row from `first` to `last` sees; of them those of the split: a run that is given, or an even share
// in whole steps.
__device__ inline CudaRange KeysOf(const CudaProblem& p, const CudaQueries& q, int64_t length, int64_t first,
                                   int64_t last, int split, int step) {
  CudaRange keys = {VisibleTo(p, length, length - q.count + IndexOf(p, first)).begin,
                    VisibleTo(p, length, length - q.count + IndexOf(p, last)).end};
  if (p.run > 0) {
    const int64_t begin = split * p.run, end = begin + p.run;
    keys.begin = keys.begin > begin ? keys.begin : int32_t(begin < kMostKeys ? begin : kMostKeys);
    keys.end = keys.end < end ? keys.end : int32_t(end);
  } else if (p.splits > 1) {
    const int32_t steps = keys.end > keys.begin ? (keys.end - keys.begin + step - 1) / step : 0;
    const CudaShare share = ShareOf(steps, p.splits, split);
    const int32_t end = keys.begin + share.end * step;
    keys.begin += share.begin * step;
    keys.end = keys.end < end ? keys.end : end;
  }
  return keys;
}

// Where key j is, without a prefix that is shared.
struct KeySpot {
  int32_t page, slot;  // page -1: there is none before `end`, or its page does not exist
};
__device__ inline KeySpot SpotOf(const CudaProblem& p, const CudaSequence& seq, int b, int j, int end) {
  if (j >= end) return {-1, 0};
  if (p.paging == CudaPaging::kNone) return {b, j};
  if (p.paging == CudaPaging::kPacked) return {0, int32_t(seq.pages) + j};
  const int entry = p.page_shift >= 0 ? j >> p.page_shift : j / p.page_size;
  const int64_t page = LoadIndex(p.pages, seq.pages + entry * p.pages_stride, p.wide_pages);
  return {page >= 0 && page < p.num_pages ? int32_t(page) : -1, j - entry * p.page_size};
}

// Elements from the first to those of a row, of queries, outputs or lse.
__device__ inline int64_t Offset(const CudaRows& of, const CudaProblem& p, const CudaQueries& q, const CudaRow& row,
                                 int b) {
  if (p.packed()) return (q.first + row.index) * of.seq + row.head * of.head;
  return b * of.outer + row.index * of.seq + row.head * of.head;
}

// What a row's sums become: the output, or a part of it.
struct RowResult {
  float share;       // factor of the sums
  bool nothing;      // the output is 0
  int64_t at, part;  // elements to its output; its number among the rows of all parts
  float top, sum, lse, lift;
};
__device__ inline RowResult ResultOf(const CudaProblem& p, const CudaQueries& q, const CudaRow& row, int b, int split,
                                     float top, float sum) {
  RowResult r = {.share = 1, .top = top, .sum = sum, .lift = row.slope * row.base};
  r.part = split * p.outputs() + (q.first + row.index) * p.h_q + row.head;
  r.at = Offset(p.out, p, q, row, b);
  const bool whole = p.part == nullptr, sunk = whole && p.sinks.data;
  const MergeScale<float> s = ScaleOf<float>(top, sum, sunk, sunk ? At(p.sinks, row.head) + r.lift : 0.0f);
  r.nothing = s.nothing;
  r.lse = s.lse - r.lift;
  if (whole || !p.raw) r.share = FastExp((top == -HUGE_VALF ? 0.0f : top) - s.top) / s.total;
  return r;
}
__device__ inline void WriteLse(const CudaProblem& p, const CudaQueries& q, const CudaRow& row, int b, int split,
                                const RowResult& r) {
  if (!p.part) {
    if (p.lse) p.lse[Offset({nullptr, p.lse_b, p.lse_s, p.lse_h}, p, q, row, b)] = r.lse;
    return;
  }
  if (p.shift && split == 0) p.shift[r.part] = r.lift;
  p.part_top[r.part] = !p.raw ? r.lse : p.shift ? r.top : r.top - r.lift;
  if (p.part_sum) p.part_sum[r.part] = r.sum;
}

}  // namespace lz::attention
#endif  // __CUDACC__
