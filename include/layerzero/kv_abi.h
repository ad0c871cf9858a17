/* The C ABI of the KV cache manager, which records which sequence owns which blocks of a KV cache. It holds metadata
 * only; the caller owns the storage. layerzero/kv_cache.h is the same as a C++ class; docs/guide/kv-cache.md explains
 * its use.
 *
 * A function that fails returns a lz_status_code and changes nothing; lz_api.last_error has the details. Any thread may
 * call; lz_kv_api.destroy must be the last call for its cache.
 *
 */
#ifndef LAYERZERO_KV_ABI_H_
#define LAYERZERO_KV_ABI_H_

#include "layerzero/c_abi.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct lz_kv_cache lz_kv_cache;

typedef enum lz_kv_strategy {
  LZ_KV_CONTIGUOUS = 0, /* one block of block_size tokens per sequence; suits captured graphs */
  LZ_KV_PAGED = 1,      /* blocks anywhere, shared prefixes, copy on write */
  LZ_KV_VIRTUAL = 2,    /* not supported */
  LZ_KV_UNIFIED = 3     /* not supported */
} lz_kv_strategy;

typedef struct lz_kv_config {
  uint32_t size;
  int32_t strategy; /* lz_kv_strategy */
  int64_t num_blocks;
  int64_t block_size;     /* tokens */
  int32_t prefix_sharing; /* 1: sequences with equal tokens share committed full blocks (LZ_KV_PAGED only) */
  int32_t reserved;
} lz_kv_config;

/* Copy all rows of block `from` to block `to` before any other write; both are -1 if there is nothing to copy. */
typedef struct lz_kv_copy {
  int32_t from;
  int32_t to;
} lz_kv_copy;

typedef struct lz_kv_stats {
  uint32_t size;
  uint32_t reserved;
  int64_t num_blocks;
  int64_t num_free; /* blocks without reusable content */
  int64_t num_idle; /* blocks that no sequence uses but that hold a prefix which may be reused */
  int64_t num_sequences;
  int64_t num_evictions;        /* idle blocks that were reused, since the start */
  int64_t num_cached_tokens;    /* tokens that allocate found cached, since the start */
  int64_t num_allocated_tokens; /* by allocate and append, since the start */
} lz_kv_stats;

typedef struct lz_kv_api {
  uint32_t size;
  uint32_t reserved;
  int32_t (*create)(const lz_kv_config* config, lz_kv_cache** cache);
  void (*destroy)(lz_kv_cache* cache);
  /* Creates a sequence of num_tokens. `tokens`: their ids, or NULL (nothing is shared); `salt` separates sequences
   * whose rows depend on more than tokens. The rows of the *num_cached leading tokens exist already; the last token
   * is never one of them. */
  int32_t (*allocate)(lz_kv_cache* cache, int64_t seq_id, int64_t num_tokens, const int32_t* tokens, uint64_t salt,
                      uint64_t* handle, int64_t* num_cached);
  int32_t (*append)(lz_kv_cache* cache, uint64_t handle, int64_t num_tokens, const int32_t* tokens, lz_kv_copy* copy);
  int32_t (*commit)(lz_kv_cache* cache, uint64_t handle); /* all rows so far are written and may be shared */
  int32_t (*truncate)(lz_kv_cache* cache, uint64_t handle, int64_t num_tokens); /* keeps the first num_tokens */
  int32_t (*fork)(lz_kv_cache* cache, uint64_t parent, int64_t seq_id, uint64_t* handle, lz_kv_copy* copy);
  int32_t (*release)(lz_kv_cache* cache, uint64_t handle); /* ends the sequence */
  void (*forget_prefixes)(lz_kv_cache* cache);
  int32_t (*length)(lz_kv_cache* cache, uint64_t handle, int64_t* num_tokens);
  /* end - begin slots: block * block_size + offset of each token. */
  int32_t (*slots)(lz_kv_cache* cache, uint64_t handle, int64_t begin, int64_t end, int64_t* slots);
  /* Blocks of the longest of these sequences, and of all together. */
  int32_t (*measure)(lz_kv_cache* cache, const uint64_t* handles, uint64_t count, int64_t* longest, int64_t* total);
  /* paged_attention's arguments: tables[count][max_blocks], -1 past a row's last block; context_lens[count]. */
  int32_t (*block_tables)(lz_kv_cache* cache, const uint64_t* handles, uint64_t count, int64_t max_blocks,
                          int32_t* tables, int32_t* context_lens);
  /* paged_decode_attention's arguments: indptr[count + 1], indices[num_indices], last_page_len[count]. */
  int32_t (*page_lists)(lz_kv_cache* cache, const uint64_t* handles, uint64_t count, int64_t num_indices,
                        int32_t* indptr, int32_t* indices, int32_t* last_page_len);
  int32_t (*is_cuda_graph_compatible)(const lz_kv_cache* cache);
  void (*stats)(lz_kv_cache* cache, lz_kv_stats* stats); /* writes the fields that stats->size covers */
} lz_kv_api;

#ifdef __cplusplus
}
#endif

#endif /* LAYERZERO_KV_ABI_H_ */
