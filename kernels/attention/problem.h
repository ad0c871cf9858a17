// One attention call as the CPU kernel sees it: pointers, strides in elements, options, and the division of the work.
// Dense, CSR-paged and block-table calls differ only in where key j of a sequence is stored.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/dtype.h"
#include "core/view.h"
#include "kernels/launch.h"

namespace lz::attention {

inline constexpr int64_t kBlock = 128;       // keys per step
inline constexpr int64_t kPackedBlock = 64;  // keys per step if they are transposed: they stay in L1
inline constexpr int64_t kRows = 64;         // query rows per tile; a row is one (position, head of the group)
inline constexpr int64_t kDirectRows = 24;   // with more rows per KV head, transposing the keys pays off
inline constexpr int64_t kPad = 32;          // head dimensions are padded to this in scratch: two AVX-512 vectors

// Upper bound of KV heads that are walked together, and bytes of their keys in one step (with at least 16 keys): the
// keys and values of two steps fit a core's L2 cache.
inline constexpr int64_t kMaxHeads = 8, kStepBytes = int64_t{32} << 10;

inline constexpr int64_t kMaxWindow = int64_t{1} << 60;

enum class Paging : uint8_t { kNone, kCsr, kBlockTable };

struct Rows {  // [batch or page, position, head, d], last axis dense
  char* data;
  int64_t outer, seq, head;
};

struct Problem {
  DType dtype;                                 // dtype of query and output
  DType cache;                                 // dtype of keys and values
  int64_t b, s_q, s_kv, h_q, h_kv, d_qk, d_v;  // s_kv: if paged, the maximum that the shapes allow
  Rows q, k, v, out;
  float scale;
  float softcap = 0;  // 0: none
  bool causal = false;
  bool split_keys = true;  // may divide the keys of one tile into parts that are merged
  int64_t window = -1;     // keys up to the row's own position; -1: all
  const lz_tensor *mask = nullptr, *sinks = nullptr, *slopes = nullptr;
  const lz_tensor *k_scale = nullptr, *v_scale = nullptr;  // scales of a cache's KV heads
  int64_t mask_strides[4] = {};                            // b, h_q, s_q, s_kv; 0 where it broadcasts
  float* lse = nullptr;
  int64_t lse_b = 0, lse_h = 0, lse_s = 0;
  Paging paging = Paging::kNone;
  const int32_t *pages = nullptr, *indptr = nullptr, *lengths = nullptr;
  int64_t lengths_stride = 1, pages_stride = 1, table_stride = 0, page_size = 1, num_pages = 0, num_indices = 0;

  int64_t group = 1;  // h_q / h_kv

  int64_t rows() const { return s_q * group; }
  int64_t tiles() const { return (rows() + kRows - 1) / kRows; }
  int64_t tile_rows() const {  // whole groups of four, or of 16 if keys are transposed
    const int64_t unit = rows() > kDirectRows ? 16 : 4;
    return std::min(kRows, (rows() + unit - 1) / unit * unit);
  }
};

// Keys of sequence s and its first entry in the page list.
struct Sequence {
  int64_t length;
  const int32_t* pages;
};
inline Sequence SequenceOf(const Problem& p, int64_t s) {
  if (p.paging == Paging::kNone) return {p.s_kv, nullptr};
  if (p.paging == Paging::kBlockTable) return {p.lengths[s * p.lengths_stride], p.pages + s * p.table_stride};
  const int64_t count = int64_t(p.indptr[s + 1]) - p.indptr[s];
  return {count > 0 ? (count - 1) * p.page_size + p.lengths[s * p.lengths_stride] : 0,
          p.pages + p.indptr[s] * p.pages_stride};
}

// Keys of sequence `seq` that are visible to row position `pos`: [lo, hi).
struct Range {
  int64_t lo, hi;
};
inline Range VisibleTo(const Problem& p, const Sequence& seq, int64_t pos) {
  const int64_t at = pos + seq.length - p.s_q;
  const int64_t hi = p.causal || p.window >= 0 ? std::min(seq.length, at + 1) : seq.length;
  const int64_t lo = p.window >= 0 ? std::max(int64_t{0}, at - p.window + 1) : 0;
  return {lo, std::max(lo, hi)};
}

// Keys [begin, end) of one sequence, starting at one KV head.
struct Stretch {
  Sequence seq;
  int64_t batch, kv_head, begin, end;
};

// False if the index data of sequence s would lead outside the tensors of a paged call.
inline bool ValidSequence(const Problem& p, int64_t s) {
  if (p.paging == Paging::kCsr) {
    const int32_t last = p.lengths[s * p.lengths_stride];
    if (p.indptr[s + 1] < p.indptr[s] || p.indptr[s + 1] > p.num_indices) return false;
    if (p.indptr[s + 1] > p.indptr[s] && (last < 0 || last > p.page_size)) return false;
  }
  const Sequence seq = SequenceOf(p, s);
  if (seq.length < 0 || (p.paging == Paging::kBlockTable && seq.length > p.s_kv)) return false;
  if (p.s_q == 0 || p.page_size == 0) return true;  // without rows or keys no page is read
  const int64_t hi = VisibleTo(p, seq, p.s_q - 1).hi;
  for (int64_t i = VisibleTo(p, seq, 0).lo / p.page_size; i * p.page_size < hi; ++i) {
    const int32_t page = seq.pages[i * p.pages_stride];
    if (page < 0 || page >= p.num_pages) return false;
  }
  return true;
}
inline bool ValidPaging(const Problem& p) {
  if (p.paging == Paging::kNone) return true;
  if (p.paging == Paging::kCsr && p.indptr[0] != 0) return false;
  for (int64_t s = 0; s < p.b; ++s) {
    if (!ValidSequence(p, s)) return false;
  }
  return true;
}

// Work items: (sequence, KV heads, tile, split of the keys). Splits and steps depend only on the call, so results do
// not depend on the number of threads; the number of heads per item changes no sum.
struct Plan {
  int64_t items, splits, slots;
  int64_t heads;                     // KV heads of an item, walked together
  int64_t step;                      // keys per step
  int64_t slot_floats, part_floats;  // scratch of one worker; one head's result of one split: o, m, l
  bool packed;
  uint64_t bytes() const {
    return uint64_t(slots * slot_floats + (splits > 1 ? items * heads * part_floats : 0)) * sizeof(float);
  }
};
inline int64_t Padded(int64_t d) { return (d + kPad - 1) / kPad * kPad; }

// Splits of about 512 keys; if that results in few items, of at least 256.
inline int64_t SplitsOf(const Problem& p, int64_t units) {
  constexpr int64_t kSplitKeys = 512, kSplitItems = 32;  // this many items are enough
  constexpr int64_t kFewKeys = 256, kFewItems = 8;
  if (!p.split_keys) return 1;
  units = std::max(units, int64_t{1});
  const int64_t splits = std::min((p.s_kv + kSplitKeys - 1) / kSplitKeys, kSplitItems / units);
  return std::max({int64_t{1}, splits, std::min(p.s_kv / kFewKeys, kFewItems / units)});
}

// True if an item takes several KV heads, for decode calls with work for many items. Heads are usually adjacent in
// memory: walked together, their rows are one stretch, which is read faster, and from fewer pages at a time, than row
// by row in a separate walk of each head.
inline bool WalksSideBySide(const Problem& p) {
  return p.s_q == 1 && p.rows() <= kDirectRows && p.h_kv > 1 && p.k.head <= 2 * p.d_qk && p.v.head <= 2 * p.d_v &&
         (p.b > 1 || SplitsOf(p, 1) > 1);
}

// Puts as many heads into an item as leave several items for every thread and fit the workspace.
inline Plan MakePlan(const Problem& p, const lz_parallel* parallel, uint64_t workspace_bytes = UINT64_MAX) {
  constexpr int64_t kItemsPerThread = 2;
  const int64_t threads = parallel ? std::max(parallel->num_threads, 1) : 1;
  const int64_t units = p.b * p.h_kv * p.tiles(), rows = p.tile_rows(), d = Padded(p.d_qk) + Padded(p.d_v);
  const bool side_by_side = WalksSideBySide(p);
  const int64_t most = side_by_side ? std::min(kMaxHeads, p.h_kv) : 1;
  Plan plan = {.packed = p.rows() > kDirectRows};
  plan.splits = SplitsOf(p, (units + most - 1) / most);
  plan.step = plan.packed ? kPackedBlock : kBlock;
  if (side_by_side) {
    const int64_t bytes = most * std::max({p.d_qk, p.d_v, int64_t{1}}) * ByteSize(p.cache);
    plan.step = std::clamp(kStepBytes / bytes / 16 * 16, int64_t{16}, kBlock);
  }
  plan.part_floats = rows * Padded(p.d_v) + (2 * rows + 15) / 16 * 16;
  for (plan.heads = most;; --plan.heads) {
    if (plan.heads > 1 && p.h_kv % plan.heads != 0) continue;
    plan.items = units / plan.heads * plan.splits;
    plan.slots = std::clamp(plan.items, int64_t{1}, threads);
    plan.slot_floats = rows * (plan.heads * d + kBlock) + (plan.packed ? kPackedBlock * d : 0);
    if (plan.heads == 1 || (plan.items >= kItemsPerThread * threads && plan.bytes() <= workspace_bytes)) return plan;
  }
}

inline uint64_t WorkspaceOf(const Problem& p, const lz_kernel_args* args) {
  return p.h_q == 0 ? 0 : MakePlan(p, args->parallel).bytes();
}

// 0, or 1 if the workspace is too small.
int32_t Run(const Problem& p, const lz_kernel_args* args);
// Run's parts by the dtype of keys and values (kernels/attention/parts).
int32_t RunF32(const Problem& p, const lz_kernel_args* args);
int32_t RunF16(const Problem& p, const lz_kernel_args* args);
int32_t RunBF16(const Problem& p, const lz_kernel_args* args);
int32_t RunI8(const Problem& p, const lz_kernel_args* args);
int32_t RunF8E4M3(const Problem& p, const lz_kernel_args* args);
int32_t RunF8E5M2(const Problem& p, const lz_kernel_args* args);

inline Rows RowsOf(const lz_tensor& t, int outer, int seq, int head) {
  return {Data<char>(t), outer < 0 ? 0 : t.strides[outer], seq < 0 ? 0 : t.strides[seq], t.strides[head]};
}
inline const lz_tensor* Optional(const lz_tensor& t) { return Given(t) ? &t : nullptr; }

// The tensors of a dense call: query (b, s_q, h_q, d_qk), key, value (b, s_kv, h_kv, d); mask and lse may be absent.
struct DenseTensors {
  const lz_tensor &query, &key, &value, &mask, &output, &lse;
};
inline Problem DenseProblem(const DenseTensors& t) {
  Problem p = {.dtype = DTypeOf(t.query), .cache = DTypeOf(t.key)};
  p.b = t.query.shape[0];
  p.s_q = t.query.shape[1];
  p.s_kv = t.key.shape[1];
  p.h_q = t.query.shape[2];
  p.h_kv = t.key.shape[2];
  p.group = p.h_kv > 0 ? p.h_q / p.h_kv : 1;
  p.d_qk = t.query.shape[3];
  p.d_v = t.value.shape[3];
  p.q = RowsOf(t.query, 0, 1, 2);
  p.k = RowsOf(t.key, 0, 1, 2);
  p.v = RowsOf(t.value, 0, 1, 2);
  p.out = RowsOf(t.output, 0, 1, 2);
  p.mask = Optional(t.mask);
  for (int i = 0; i < t.mask.ndim; ++i) {  // may lack leading axes and have axes of size 1
    p.mask_strides[4 - t.mask.ndim + i] = t.mask.shape[i] == 1 ? 0 : t.mask.strides[i];
  }
  if (Given(t.lse)) {
    p.lse = Data<float>(t.lse);
    p.lse_b = t.lse.strides[0], p.lse_h = t.lse.strides[1], p.lse_s = t.lse.strides[2];
  }
  return p;
}

}  // namespace lz::attention
