// The KV cache manager from C++20: block tables, prefix sharing, copy on write over storage that the caller owns.
// Header only, over the C ABI; throws nothing itself.
//
//   namespace lz = layerzero;
//   auto cache = lz::KvCache::Make({.num_blocks = 1024, .block_size = 16});      // Result<KvCache>
//   auto sequence = cache->Allocate(7, prompt.size(), prompt);                   // Result<KvAllocation>
//   cache->Slots(sequence->handle, sequence->num_cached, prompt.size());         // where new rows are written
//   cache->Commit(sequence->handle);                                             // rows are written: share them
//   auto copy = cache->Append(sequence->handle, 1);                              // copy->from >= 0: copy that block
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "layerzero/kv_abi.h"
#include "layerzero/status.h"

namespace layerzero {

struct KvConfig {
  lz_kv_strategy strategy = LZ_KV_PAGED;
  int64_t num_blocks = 0;
  int64_t block_size = 0;  // tokens
  bool prefix_sharing = false;
};

struct KvAllocation {
  uint64_t handle;
  int64_t num_cached;  // leading tokens whose rows exist already
};

// The arguments of paged_attention: block_tables is count x max_blocks, row-major.
struct KvBlockTables {
  int64_t max_blocks = 0;
  std::vector<int32_t> block_tables, context_lens;
};
// The arguments of paged_decode_attention.
struct KvPageLists {
  std::vector<int32_t> indptr, indices, last_page_len;
};

class KvCache {
 public:
  static Result<KvCache> Make(const KvConfig& config) {
    const lz_api* api = lz_get_api(LZ_ABI_MAJOR, sizeof(lz_api));
    if (!api || !api->kv) {
      return Status(LZ_VERSION_MISMATCH, "liblayerzero.so", "a release with the KV cache manager", "an older one",
                    "install the library and the headers of one release");
    }
    const lz_kv_config c{sizeof(c), config.strategy, config.num_blocks, config.block_size, config.prefix_sharing, 0};
    lz_kv_cache* cache = nullptr;
    if (api->kv->create(&c, &cache) != LZ_OK) return Status(*api->last_error());
    return KvCache(api, cache);
  }

  // `tokens`: the ids of all num_tokens, or empty (nothing is shared).
  Result<KvAllocation> Allocate(int64_t seq_id, int64_t num_tokens, std::span<const int32_t> tokens = {},
                                uint64_t salt = 0) const {
    KvAllocation made{};
    Status status = CheckTokens(num_tokens, tokens);
    if (!status.ok()) return status;
    status = Check(kv().allocate(cache_.get(), seq_id, num_tokens, Data(tokens), salt, &made.handle, &made.num_cached));
    if (!status.ok()) return status;
    return made;
  }
  Result<lz_kv_copy> Append(uint64_t handle, int64_t num_tokens, std::span<const int32_t> tokens = {}) const {
    lz_kv_copy copy{};
    if (Status s = CheckTokens(num_tokens, tokens); !s.ok()) return s;
    if (Status s = Check(kv().append(cache_.get(), handle, num_tokens, Data(tokens), &copy)); !s.ok()) return s;
    return copy;
  }
  Status Commit(uint64_t handle) const { return Check(kv().commit(cache_.get(), handle)); }
  Status Truncate(uint64_t handle, int64_t num_tokens) const {
    return Check(kv().truncate(cache_.get(), handle, num_tokens));
  }
  Result<uint64_t> Fork(uint64_t parent, int64_t seq_id, lz_kv_copy* copy) const {
    uint64_t handle = 0;
    if (Status s = Check(kv().fork(cache_.get(), parent, seq_id, &handle, copy)); !s.ok()) return s;
    return handle;
  }
  Status Free(uint64_t handle) const { return Check(kv().release(cache_.get(), handle)); }
  void ForgetPrefixes() const { kv().forget_prefixes(cache_.get()); }

  Result<int64_t> Length(uint64_t handle) const {
    int64_t length = 0;
    if (Status s = Check(kv().length(cache_.get(), handle, &length)); !s.ok()) return s;
    return length;
  }
  Result<std::vector<int64_t>> Slots(uint64_t handle, int64_t begin, int64_t end) const {
    std::vector<int64_t> slots(end > begin ? size_t(end - begin) : 0);
    if (Status s = Check(kv().slots(cache_.get(), handle, begin, end, slots.data())); !s.ok()) return s;
    return slots;
  }
  Result<KvBlockTables> BlockTables(std::span<const uint64_t> handles) const {
    KvBlockTables t;
    int64_t total = 0;
    if (Status s = Measure(handles, &t.max_blocks, &total); !s.ok()) return s;
    t.block_tables.resize(handles.size() * size_t(t.max_blocks));
    t.context_lens.resize(handles.size());
    Status status = Check(kv().block_tables(cache_.get(), handles.data(), handles.size(), t.max_blocks,
                                            t.block_tables.data(), t.context_lens.data()));
    if (!status.ok()) return status;
    return t;
  }
  Result<KvPageLists> PageLists(std::span<const uint64_t> handles) const {
    KvPageLists t;
    int64_t longest = 0, total = 0;
    if (Status s = Measure(handles, &longest, &total); !s.ok()) return s;
    t.indptr.resize(handles.size() + 1);
    t.indices.resize(size_t(total));
    t.last_page_len.resize(handles.size());
    Status status = Check(kv().page_lists(cache_.get(), handles.data(), handles.size(), total, t.indptr.data(),
                                          t.indices.data(), t.last_page_len.data()));
    if (!status.ok()) return status;
    return t;
  }
  bool is_cuda_graph_compatible() const { return kv().is_cuda_graph_compatible(cache_.get()) != 0; }
  lz_kv_stats Stats() const {
    lz_kv_stats stats{};
    stats.size = sizeof(stats);
    kv().stats(cache_.get(), &stats);
    return stats;
  }

 private:
  struct Destroy {
    const lz_api* api;
    void operator()(lz_kv_cache* cache) const { api->kv->destroy(cache); }
  };
  KvCache(const lz_api* api, lz_kv_cache* cache) : api_(api), cache_(cache, Destroy{api}) {}

  const lz_kv_api& kv() const { return *api_->kv; }
  Status Check(int32_t code) const { return code == LZ_OK ? Status() : Status(*api_->last_error()); }
  static Status CheckTokens(int64_t num_tokens, std::span<const int32_t> tokens) {
    if (tokens.empty() || int64_t(tokens.size()) == num_tokens) return {};
    return Status(LZ_INVALID_REQUEST, "KvCache: tokens", "none or " + std::to_string(num_tokens),
                  std::to_string(tokens.size()));
  }
  static const int32_t* Data(std::span<const int32_t> tokens) { return tokens.empty() ? nullptr : tokens.data(); }
  Status Measure(std::span<const uint64_t> handles, int64_t* longest, int64_t* total) const {
    return Check(kv().measure(cache_.get(), handles.data(), handles.size(), longest, total));
  }

  const lz_api* api_;
  std::unique_ptr<lz_kv_cache, Destroy> cache_;
};

}  // namespace layerzero
