// The C ABI of the KV cache manager over src/kvcache.
#include "layerzero/kv_abi.h"

#include <algorithm>
#include <cstring>

#include "engine/c_abi_parts.h"
#include "kvcache/manager.h"

namespace lz {
namespace {

using kvcache::BlockCopy;
using kvcache::Manager;

// The handle of a cache is its manager.
Manager* Of(lz_kv_cache* cache) { return reinterpret_cast<Manager*>(cache); }

int32_t Missing(const char* what) {
  return KeepError({StatusCode::kInvalidRequest,
                    {.field = std::string("KVCacheManager: ") + what, .wanted = "a pointer", .got = "NULL"}});
}

template <class T>
std::span<T> Span(T* data, uint64_t size) {
  return data ? std::span<T>(data, size_t(size)) : std::span<T>();
}
std::span<const int32_t> Tokens(const int32_t* tokens, int64_t n) {
  return Span(tokens, uint64_t(std::max<int64_t>(n, 0)));
}

int32_t Create(const lz_kv_config* config, lz_kv_cache** cache) {
  if (!config || !cache || config->size < sizeof(lz_kv_config)) return Missing("config");
  auto made = Manager::Make({.strategy = kvcache::Strategy(config->strategy),
                             .num_blocks = config->num_blocks,
                             .block_size = config->block_size,
                             .prefix_sharing = config->prefix_sharing != 0});
  if (!made.ok()) return KeepError(made.status());
  *cache = reinterpret_cast<lz_kv_cache*>(made->release());
  return LZ_OK;
}
void Destroy(lz_kv_cache* cache) { delete Of(cache); }

int32_t Allocate(lz_kv_cache* cache, int64_t seq_id, int64_t num_tokens, const int32_t* tokens, uint64_t salt,
                 uint64_t* handle, int64_t* num_cached) {
  if (!handle || !num_cached) return Missing("handle");
  auto made = Of(cache)->Allocate(seq_id, num_tokens, Tokens(tokens, num_tokens), salt);
  if (!made.ok()) return KeepError(made.status());
  *handle = made->handle;
  *num_cached = made->num_cached_tokens;
  return LZ_OK;
}
int32_t Append(lz_kv_cache* cache, uint64_t handle, int64_t num_tokens, const int32_t* tokens, lz_kv_copy* copy) {
  if (!copy) return Missing("copy");
  auto done = Of(cache)->Append(handle, num_tokens, Tokens(tokens, num_tokens));
  if (!done.ok()) return KeepError(done.status());
  *copy = {done->from, done->to};
  return LZ_OK;
}
int32_t Commit(lz_kv_cache* cache, uint64_t handle) { return KeepError(Of(cache)->Commit(handle)); }
int32_t Truncate(lz_kv_cache* cache, uint64_t handle, int64_t num_tokens) {
  return KeepError(Of(cache)->Truncate(handle, num_tokens));
}
int32_t Fork(lz_kv_cache* cache, uint64_t parent, int64_t seq_id, uint64_t* handle, lz_kv_copy* copy) {
  if (!handle || !copy) return Missing("handle");
  auto made = Of(cache)->Fork(parent, seq_id);
  if (!made.ok()) return KeepError(made.status());
  *handle = made->first;
  *copy = {made->second.from, made->second.to};
  return LZ_OK;
}
int32_t Release(lz_kv_cache* cache, uint64_t handle) { return KeepError(Of(cache)->Free(handle)); }
void ForgetPrefixes(lz_kv_cache* cache) { Of(cache)->ForgetPrefixes(); }

int32_t Length(lz_kv_cache* cache, uint64_t handle, int64_t* num_tokens) {
  auto length = Of(cache)->Length(handle);
  if (!length.ok()) return KeepError(length.status());
  *num_tokens = *length;
  return LZ_OK;
}
int32_t Slots(lz_kv_cache* cache, uint64_t handle, int64_t begin, int64_t end, int64_t* slots) {
  return KeepError(Of(cache)->Slots(handle, begin, end, Span(slots, uint64_t(std::max<int64_t>(end - begin, 0)))));
}
int32_t Measure(lz_kv_cache* cache, const uint64_t* handles, uint64_t count, int64_t* longest, int64_t* total) {
  auto extent = Of(cache)->Measure(Span(handles, count));
  if (!extent.ok()) return KeepError(extent.status());
  *longest = extent->longest;
  *total = extent->total;
  return LZ_OK;
}
int32_t BlockTables(lz_kv_cache* cache, const uint64_t* handles, uint64_t count, int64_t max_blocks, int32_t* tables,
                    int32_t* context_lens) {
  const uint64_t cells = count * uint64_t(std::max<int64_t>(max_blocks, 0));
  return KeepError(
      Of(cache)->BlockTables(Span(handles, count), Span(tables, cells), max_blocks, Span(context_lens, count)));
}
int32_t PageLists(lz_kv_cache* cache, const uint64_t* handles, uint64_t count, int64_t num_indices, int32_t* indptr,
                  int32_t* indices, int32_t* last_page_len) {
  return KeepError(Of(cache)->PageLists(Span(handles, count), Span(indptr, count + 1),
                                        Span(indices, uint64_t(std::max<int64_t>(num_indices, 0))),
                                        Span(last_page_len, count)));
}
int32_t IsCudaGraphCompatible(const lz_kv_cache* cache) {
  return reinterpret_cast<const Manager*>(cache)->is_cuda_graph_compatible();
}
void GetStats(lz_kv_cache* cache, lz_kv_stats* stats) {
  const kvcache::Stats s = Of(cache)->GetStats();
  const lz_kv_stats all{stats->size,
                        0,
                        s.num_blocks,
                        s.num_free,
                        s.num_idle,
                        s.num_sequences,
                        s.num_evictions,
                        s.num_cached_tokens,
                        s.num_allocated_tokens};
  std::memcpy(stats, &all, std::min<size_t>(stats->size, sizeof(all)));
}

}  // namespace

const lz_kv_api* KvApi() {
  static const lz_kv_api api = {sizeof(lz_kv_api),
                                0,
                                Create,
                                Destroy,
                                Allocate,
                                Append,
                                Commit,
                                Truncate,
                                Fork,
                                Release,
                                ForgetPrefixes,
                                Length,
                                Slots,
                                Measure,
                                BlockTables,
                                PageLists,
                                IsCudaGraphCompatible,
                                GetStats};
  return &api;
}

}  // namespace lz
