// Where a paged cache stores the keys of a sequence, for the attention references: CSR page lists and block tables.
#pragma once

#include <cstdint>

#include "ops/common/attention_math.h"
#include "ops/common/kv_rows.h"

namespace lz::ops::attention {

// The listed pages of one sequence: entry j is slot j % page_size of page j / page_size of the list.
struct PageList {
  const View* pages;
  int64_t first = 0;   // element offset of the first page number
  int64_t stride = 1;  // elements from one page number to the next
  int64_t length = 0;  // number of entries; -1: the index data are invalid

  // Element offset of entry j in a cache (pages, page_size, ...).
  int64_t Offset(const View& cache, int64_t j) const {
    const int64_t size = cache.size(1);
    return pages->LoadInt(first + j / size * stride) * cache.stride(0) + j % size * cache.stride(1);
  }
  // True if the pages of entries [begin, end) exist.
  bool Exist(const View& cache, int64_t begin, int64_t end) const {
    const int64_t size = cache.size(1);
    for (int64_t j = begin; j < end; j = (j / size + 1) * size) {
      const int64_t page = pages->LoadInt(first + j / size * stride);
      if (page < 0 || page >= cache.size(0)) return false;
    }
    return true;
  }
};

// kv_indptr, kv_indices, kv_last_page_len.
class CsrPages {
 public:
  CsrPages(const lz_tensor& indptr, const lz_tensor& indices, const lz_tensor& last_page_len, int64_t page_size)
      : indptr_(indptr), indices_(indices), last_(last_page_len), page_size_(page_size) {}

  bool OffsetsFit() const { return OffsetsValid(indptr_, indices_.size(0)); }
  PageList Sequence(int64_t s) const {
    const int64_t first = indptr_.GetInt({s}), count = indptr_.GetInt({s + 1}) - first;
    PageList list = {&indices_, first * indices_.stride(0), indices_.stride(0), 0};
    if (count == 0) return list;
    const int64_t last = last_.GetInt({s});
    list.length = last < 0 || last > page_size_ ? -1 : (count - 1) * page_size_ + last;
    return list;
  }
  // Checks that the list of every sequence is valid and that the pages of the keys of its n_q(s) rows exist.
  template <class Rows>
  bool Valid(const View& cache, int64_t batch, const AttentionOptions& o, Rows&& n_q) const {
    if (!OffsetsFit()) return false;
    for (int64_t s = 0; s < batch; ++s) {
      const PageList list = Sequence(s);
      if (list.length < 0) return false;
      const int64_t begin = VisibleKeys(o.causal, o.window, list.length - n_q(s), list.length).begin;
      if (n_q(s) > 0 && !list.Exist(cache, begin, list.length)) return false;
    }
    return true;
  }

 private:
  View indptr_, indices_, last_;
  int64_t page_size_;
};

// window_left counts keys before the row's own position, `window` includes it; -1: all.
inline int64_t WindowOf(const lz_scalar& window_left) {
  const int64_t left = window_left.value.i;
  return left < 0 ? -1 : std::min(left, std::numeric_limits<int64_t>::max() - 1) + 1;
}

struct PagedTensors {
  const lz_tensor &query, &k_cache, &v_cache;
  const lz_tensor *k_scale = nullptr, *v_scale = nullptr;  // may be absent
};
// The scale of KV head h of a cache.
inline double UnitOf(const lz_tensor* scale, int64_t h) { return scale ? double(kv::ScaleOf(View(*scale), h)) : 1.0; }

// Attends n_q rows of one sequence to its pages. query_offset, row_stride and head_stride are in elements.
template <class Write>
void AttendPaged(const AttentionOptions& o, const PagedTensors& t, const PageList& list, int64_t n_q,
                 int64_t query_offset, int64_t row_stride, int64_t head_stride, Write&& write) {
  const View q(t.query), k(t.k_cache), v(t.v_cache);
  AttendRows(
      o, {n_q, list.length, q.size(-2), k.size(2), v.size(3)},
      [&](int64_t i, int64_t h, int64_t j, int64_t kv) {
        return Dot(q, query_offset + i * row_stride + h * head_stride, k, list.Offset(k, j) + kv * k.stride(2),
                   k.size(3), UnitOf(t.k_scale, kv));
      },
      kNoBias,
      [&](int64_t j, int64_t kv, int64_t c) {
        return UnitOf(t.v_scale, kv) * v.Load(list.Offset(v, j) + kv * v.stride(2) + c * v.stride(3));
      },
      write);
}

}  // namespace lz::ops::attention
