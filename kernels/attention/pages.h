// A paged cache as keys and values of a Problem: pages listed in CSR form or in a block table.
#pragma once

#include "kernels/attention/problem.h"

namespace lz::attention {

// The dtypes of caches that the kernels read, independent of the query's dtype.
inline constexpr DTypeMask kCaches = kF32F16BF16 | Mask(DType::kF8E4M3, DType::kF8E5M2, DType::kI8);

// Keys and values [pages, page_size, h_kv, d], with the scales of their heads, if given.
struct Caches {
  const lz_tensor &k_cache, &v_cache, &k_scale, &v_scale;
};
// `pages`: the list or table of page numbers.
inline Problem OverPages(Problem p, const Caches& t, const lz_tensor& pages) {
  const auto& [k_cache, v_cache, k_scale, v_scale] = t;
  p.cache = DTypeOf(k_cache);
  p.num_pages = k_cache.shape[0];
  p.page_size = k_cache.shape[1];
  p.h_kv = k_cache.shape[2];
  p.d_v = v_cache.shape[3];
  p.group = p.h_kv > 0 ? p.h_q / p.h_kv : 1;
  p.k = RowsOf(k_cache, 0, 1, 2);
  p.v = RowsOf(v_cache, 0, 1, 2);
  p.k_scale = Optional(k_scale);
  p.v_scale = Optional(v_scale);
  p.pages = Data<const int32_t>(pages);
  return p;
}

// Pages without slots have no keys: the call, once checked, is a dense one without keys.
inline Problem WithoutEmptyPages(Problem p) {
  if (p.page_size == 0) p.paging = Paging::kNone, p.s_kv = 0;
  return p;
}

struct CsrLists {
  const lz_tensor &indptr, &indices, &last_page_len;
};
inline Problem OverCsrPages(Problem p, const Caches& caches, const CsrLists& t) {
  p = OverPages(p, caches, t.indices);
  p.paging = Paging::kCsr;
  p.pages_stride = t.indices.strides[0];
  p.num_indices = t.indices.shape[0];
  p.indptr = Data<const int32_t>(t.indptr);
  p.lengths = Data<const int32_t>(t.last_page_len);
  p.lengths_stride = t.last_page_len.strides[0];
  p.s_kv = p.b > 0 ? (p.num_indices * p.page_size + p.b - 1) / p.b : 0;
  return p;
}

}  // namespace lz::attention
