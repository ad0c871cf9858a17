// One attention call with few rows as own CUDA kernels see it: pointers, strides in elements, options, and how its keys
// are cut. Dense, paged and cascade calls differ only in where key j of a sequence is.
#pragma once

#include "kernels/attention/merge_cuda.h"

namespace lz::attention {

struct CudaRows {  // [batch or page, position, head, d], last axis dense
  const void* data = nullptr;
  int64_t outer = 0, seq = 0, head = 0;
};
struct CudaVector {  // one number for each head; a stride of 0 where one serves all
  const void* data = nullptr;
  DType type = DType::kF32;
  int64_t stride = 0;
};
// kPacked: keys [total, head, d] of which a sequence's are from indptr[s] up to the next offset.
enum class CudaPaging : int32_t { kNone, kPacked, kCsr, kTable };
// Blocks of queries and of keys, of different sizes, and which of them see each other, all for each KV head.
struct CudaMap {
  bool given = false;
  const bool* seen = nullptr;  // [h_kv, blocks of queries, blocks of keys]
  int64_t seen_strides[3] = {};
  const void *rows = nullptr, *columns = nullptr;  // sizes, [h_kv, blocks]
  bool wide_rows = false, wide_columns = false;    // int64
  int64_t row_strides[2] = {}, column_strides[2] = {};
  int32_t num_columns = 0;
};

struct CudaProblem {
  DType type = DType::kF32, cache = DType::kF32;  // of query and output; of keys and values
  CudaRows q, k, v, out;
  CudaRows q_more, k_more;      // of MLA: the last d_more of the d_qk columns
  CudaRows shared_k, shared_v;  // before a sequence's own keys: [position, head, d]
  // Packed queries: those of sequence s are from q_indptr[s] up to the next offset; no outer stride counts.
  const void* q_indptr = nullptr;
  bool wide_q_indptr = false;
  int64_t q_indptr_stride = 1, total_q = 0;
  CudaMap map;  // with it a sequence is a block of queries of one KV head
  float* lse = nullptr;
  int64_t lse_b = 0, lse_h = 0, lse_s = 0;
  CudaVector sinks, slopes, k_scale, v_scale;
  const void* mask = nullptr;  // boolean, or added
  DType mask_type = DType::kBool;
  int64_t mask_strides[4] = {};  // b, h_q, s_q, s_kv; 0 where it broadcasts
  CudaPaging paging = CudaPaging::kNone;
  const void *pages = nullptr, *indptr = nullptr, *lengths = nullptr;  // lengths: of the last page with kCsr,
                                                                       // all pages are full without
  bool wide_pages = false, wide_indptr = false, wide_lengths = false;  // int64
  int64_t pages_stride = 1, table_stride = 0, indptr_stride = 1, lengths_stride = 1;
  int32_t page_size = 1, page_shift = -1;  // page_shift: log2 of a page size that is a power of two
  int64_t num_pages = 0, num_indices = 0;
  int32_t b = 0, s_q = 0, h_q = 0, h_kv = 0, group = 1, d_qk = 0, d_v = 0, d_more = 0, shared = 0;
  bool latent = false;  // of MLA: the first d_v columns of keys are the values
  int64_t s_kv = 0;     // the most keys of a sequence that shapes allow; CSR: the mean
  float scale = 1, softcap = 0;
  bool causal = false;
  int64_t window = -1;  // keys up to the row's own position; -1: all
  // How keys are cut. Parts are [parts(), b * s_q, h_q, d_v] and [parts(), b * s_q, h_q], all float32.
  int32_t splits = 1, together = 1;  // `together` splits are the blocks of a cluster, which merges them
  int64_t run = 0;                   // keys of a split; 0: even shares of what the rows see
  bool raw = true;                   // parts are sums with row max and row sum, else normalised with their lse
  float *part = nullptr, *part_top = nullptr, *part_sum = nullptr;
  float* shift = nullptr;  // [b * s_q, h_q]: what the parts' row max must be lowered by, with slopes

  __host__ __device__ int32_t parts() const { return splits / together; }
  __host__ __device__ int64_t rows() const { return int64_t(s_q) * group; }
  __host__ __device__ bool packed() const { return q_indptr || map.given; }
  __host__ __device__ int64_t outputs() const { return (packed() ? total_q : int64_t(b) * s_q) * h_q; }
};

inline CudaRows CudaRowsOf(const lz_tensor& t, int outer, int seq, int head) {
  return {Data<void>(t), outer < 0 ? 0 : t.strides[outer], seq < 0 ? 0 : t.strides[seq], t.strides[head]};
}
inline CudaVector CudaVectorOf(const lz_tensor& t) {
  if (!Given(t)) return {};
  return {Data<void>(t), DTypeOf(t), t.ndim == 1 && t.shape[0] > 1 ? t.strides[0] : 0};
}
inline void SetLse(CudaProblem* p, const lz_tensor& lse, int b, int h, int s) {
  if (!Given(lse)) return;
  p->lse = Data<float>(lse);
  p->lse_b = lse.strides[b], p->lse_h = lse.strides[h], p->lse_s = s < 0 ? 0 : lse.strides[s];
}
inline void SetMask(CudaProblem* p, const lz_tensor& mask) {  // it may lack leading axes and have axes of size 1
  if (!Given(mask)) return;
  p->mask = Data<void>(mask);
  p->mask_type = DTypeOf(mask);
  for (int i = 0; i < mask.ndim; ++i) {
    p->mask_strides[4 - mask.ndim + i] = mask.shape[i] == 1 ? 0 : mask.strides[i];
  }
}
inline void SetHeads(CudaProblem* p, int64_t h_q, int64_t h_kv) {
  p->h_q = int32_t(h_q), p->h_kv = int32_t(h_kv);
  p->group = h_kv > 0 ? int32_t(h_q / h_kv) : 1;
}

// query (b, s_q, h_q, d_qk), key and value (b, s_kv, h_kv, d).
inline CudaProblem DenseCudaProblem(const lz_tensor& query, const lz_tensor& key, const lz_tensor& value) {
  CudaProblem p = {.type = DTypeOf(query), .cache = DTypeOf(key)};
  p.q = CudaRowsOf(query, 0, 1, 2), p.k = CudaRowsOf(key, 0, 1, 2), p.v = CudaRowsOf(value, 0, 1, 2);
  p.b = int32_t(query.shape[0]), p.s_q = int32_t(query.shape[1]), p.s_kv = key.shape[1];
  SetHeads(&p, query.shape[2], key.shape[2]);
  p.d_qk = int32_t(query.shape[3]), p.d_v = int32_t(value.shape[3]);
  return p;
}

// Of num_pages pages, their numbers in `pages`.
inline void SetPageNumbers(CudaProblem* p, int64_t num_pages, int32_t page_size, const lz_tensor& pages) {
  p->num_pages = num_pages, p->page_size = page_size;
  for (int i = 0; i < 31; ++i) p->page_shift = p->page_size == int32_t{1} << i ? i : p->page_shift;
  p->pages = Data<void>(pages), p->wide_pages = DTypeOf(pages) == DType::kI64;
}
// Of a cache [pages, page_size, ...].
inline void SetPageNumbers(CudaProblem* p, const lz_tensor& cache, const lz_tensor& pages) {
  SetPageNumbers(p, cache.shape[0], int32_t(cache.shape[1]), pages);
}
// Caches [pages, page_size, h_kv, d].
inline void SetPages(CudaProblem* p, const lz_tensor& k_cache, const lz_tensor& v_cache, const lz_tensor& k_scale,
                     const lz_tensor& v_scale, const lz_tensor& pages) {
  p->cache = DTypeOf(k_cache);
  p->k = CudaRowsOf(k_cache, 0, 1, 2), p->v = CudaRowsOf(v_cache, 0, 1, 2);
  p->k_scale = CudaVectorOf(k_scale), p->v_scale = CudaVectorOf(v_scale);
  p->d_v = int32_t(v_cache.shape[3]);
  SetPageNumbers(p, k_cache, pages);
}
inline void SetFullPages(CudaProblem* p, const lz_tensor& indptr, const lz_tensor& indices) {
  p->paging = CudaPaging::kCsr;
  p->pages_stride = indices.strides[0], p->num_indices = indices.shape[0];
  p->indptr = Data<void>(indptr), p->wide_indptr = DTypeOf(indptr) == DType::kI64, p->indptr_stride = indptr.strides[0];
  p->s_kv = p->b > 0 ? (p->num_indices * p->page_size + p->b - 1) / p->b : 0;
}
inline void SetCsr(CudaProblem* p, const lz_tensor& indptr, const lz_tensor& indices, const lz_tensor& last) {
  SetFullPages(p, indptr, indices);
  p->lengths = Data<void>(last), p->wide_lengths = DTypeOf(last) == DType::kI64, p->lengths_stride = last.strides[0];
}

// Packed queries [total_q, h_q, d_qk] and their outputs; `lse` [total_q, h_q].
inline void SetPackedQueries(CudaProblem* p, const lz_tensor& query, const lz_tensor& starts, const lz_tensor& out,
                             const lz_tensor& lse) {
  p->q = CudaRowsOf(query, -1, 0, 1), p->out = CudaRowsOf(out, -1, 0, 1);
  p->s_q = 1, p->d_qk = int32_t(query.shape[2]);
  p->b = int32_t(starts.shape[0] - 1), p->total_q = query.shape[0];
  p->q_indptr = Data<void>(starts), p->wide_q_indptr = DTypeOf(starts) == DType::kI64;
  p->q_indptr_stride = starts.strides[0];
  if (!Given(lse)) return;
  p->lse = Data<float>(lse);
  p->lse_s = lse.strides[0], p->lse_h = lse.strides[1];
}
// Packed keys and values [total_kv, h_kv, d].
inline void SetPackedKeys(CudaProblem* p, const lz_tensor& key, const lz_tensor& value, const lz_tensor& starts) {
  p->cache = DTypeOf(key), p->paging = CudaPaging::kPacked;
  p->k = CudaRowsOf(key, -1, 0, 1), p->v = CudaRowsOf(value, -1, 0, 1), p->d_v = int32_t(value.shape[2]);
  p->indptr = Data<void>(starts), p->wide_indptr = DTypeOf(starts) == DType::kI64, p->indptr_stride = starts.strides[0];
  p->num_indices = key.shape[0];
  p->s_kv = p->b > 0 ? (key.shape[0] + p->b - 1) / p->b : 0;
}

inline constexpr int64_t kMaxCudaWindow = int64_t{1} << 60;
// A window that counts the row's own position, or one that counts those before it; -1: all.
inline int64_t CudaWindow(int64_t window) { return window < kMaxCudaWindow ? window : kMaxCudaWindow; }
inline int64_t CudaWindowLeft(int64_t left) { return left < 0 ? -1 : CudaWindow(left) + 1; }

// Head dimensions that the kernel takes: multiples of 8, rows at multiples of 16 bytes.
inline constexpr int64_t kMostHeadDim = 256, kMostKeys = int64_t{1} << 30;
inline constexpr int64_t kMostWideHeadDim = 512;  // of tiles of rows
inline constexpr int64_t kMostQueries = int64_t{1} << 24;
inline constexpr int64_t kFewQueries = 8;  // more of them are for tiles
inline constexpr DTypeMask kCudaCaches = kF32F16BF16 | Mask(DType::kF8E4M3, DType::kF8E5M2, DType::kI8);

// By the dtype of keys and values (kernels/attention/parts); the parts alone, if `p.part` is given.
int32_t DecodeF32(const CudaProblem& p, void* stream);
int32_t DecodeF16(const CudaProblem& p, void* stream);
int32_t DecodeBF16(const CudaProblem& p, void* stream);
int32_t DecodeI8(const CudaProblem& p, void* stream);
int32_t DecodeF8E4M3(const CudaProblem& p, void* stream);
int32_t DecodeF8E5M2(const CudaProblem& p, void* stream);
// The same for tiles of rows in FP32, over keys and values in float32; with a map.
int32_t FloatTiles(const CudaProblem& p, void* stream);
int32_t MappedFloatTiles(const CudaProblem& p, void* stream);
// The same for tiles of rows in 16 bits; keys and values of the query's dtype.
int32_t TilesF16(const CudaProblem& p, void* stream);
int32_t TilesBF16(const CudaProblem& p, void* stream);
// The same for heads with more than kMostHeadDim columns.
int32_t WideF16(const CudaProblem& p, void* stream);
int32_t WideBF16(const CudaProblem& p, void* stream);
// The same for the 128 rows of two warpgroups, on sm_90.
int32_t GroupsF16(const CudaProblem& p, void* stream);
int32_t GroupsBF16(const CudaProblem& p, void* stream);
// With a map.
int32_t MappedF16(const CudaProblem& p, void* stream);
int32_t MappedBF16(const CudaProblem& p, void* stream);

// The parts, or the whole call if it is not split.
int32_t DecodeParts(const CudaProblem& p, void* stream);
int32_t FloatTileParts(const CudaProblem& p, void* stream);
int32_t TileParts(const CudaProblem& p, void* stream);
// A whole call: few rows by dot products, in float32 many by tiles; tiles of rows by products of matrices (keys and
// values of the query's dtype).
// Where keys are split, the parts are in `args->workspace`, PartBytes of the same cut, and are merged.
int32_t RunFew(CudaProblem p, const lz_kernel_args* args);
int32_t RunFloatTiles(CudaProblem p, const lz_kernel_args* args);
int32_t RunTiles(CudaProblem p, const lz_kernel_args* args);
int32_t RunGroups(CudaProblem p, const lz_kernel_args* args);

}  // namespace lz::attention
