// KVCacheManager: which sequence owns which blocks of a KV cache. Metadata only: the storage is the caller's tensor,
// (num_blocks, block_size, heads, head_dim) or any other order of those axes.
//
//   auto cache = Manager::Make({.strategy = Strategy::kPaged, .num_blocks = 1024, .block_size = 16});
//   auto handle = (*cache)->Allocate(seq_id, tokens.size(), tokens, 0);   // shares the cached part of the prefix
//   (*cache)->Slots(*handle, cached, length, slots);                      // where kv.append_paged writes the rest
//   (*cache)->Commit(*handle);                                            // written: others may share it now
//   auto copy = (*cache)->Append(*handle, 1, {});                         // grows; a shared block is copied first
//
// Every call either succeeds or changes nothing. Any thread may call. The caller orders writes: blocks that a call
// requires to be copied are copied before anything else is written to the storage.
#pragma once

#include <memory>
#include <mutex>
#include <string_view>

#include "core/status.h"
#include "kvcache/block_pool.h"

namespace lz::kvcache {

// Values of lz_kv_strategy.
enum class Strategy : int32_t {
  kContiguous = 0,  // one block per sequence, as long as a sequence may become
  kPaged = 1,       // as many blocks as a sequence needs, in any order
  kVirtual = 2,     // refused: needs the device's virtual memory
  kUnified = 3,     // refused: needs memory that CPU and device share
};

struct Config {
  Strategy strategy = Strategy::kPaged;
  int64_t num_blocks = 0;
  int64_t block_size = 0;  // tokens; kContiguous: the longest sequence
  bool prefix_sharing = false;
};

using Handle = uint64_t;  // one per allocation; never reused

// A block whose rows must be copied to another one. from == to == -1: nothing to copy.
struct BlockCopy {
  int32_t from = -1, to = -1;
};

struct Allocation {
  Handle handle = 0;
  int64_t num_cached_tokens = 0;  // leading tokens whose rows exist already
};

struct Stats {
  int64_t num_blocks = 0, num_free = 0, num_idle = 0, num_sequences = 0;
  int64_t num_evictions = 0, num_cached_tokens = 0, num_allocated_tokens = 0;
};

class Manager {
 public:
  static Result<std::unique_ptr<Manager>> Make(const Config& config);

  const Config& config() const { return config_; }
  // True if block tables stay unchanged while sequences grow, so that a captured graph stays valid.
  bool is_cuda_graph_compatible() const { return config_.strategy == Strategy::kContiguous; }

  // `tokens`: the ids of all num_tokens, or empty (nothing is shared). The last token is never shared, because its
  // logits are needed. A `seq_id` that is in use is refused.
  Result<Allocation> Allocate(int64_t seq_id, int64_t num_tokens, std::span<const int32_t> tokens, uint64_t salt);
  Result<BlockCopy> Append(Handle handle, int64_t num_tokens, std::span<const int32_t> tokens);
  // The rows of all tokens so far are written: full blocks may be shared from now on.
  Status Commit(Handle handle);
  Status Truncate(Handle handle, int64_t num_tokens);  // keeps the first num_tokens
  // Creates a second sequence with the same tokens. kContiguous: its block must be copied.
  Result<std::pair<Handle, BlockCopy>> Fork(Handle parent, int64_t seq_id);
  Status Free(Handle handle);
  void ForgetPrefixes();  // stops sharing of everything published so far (the weights have changed)

  Result<int64_t> Length(Handle handle) const;
  // The slot (block * block_size + offset) of each token of [begin, end).
  Status Slots(Handle handle, int64_t begin, int64_t end, std::span<int64_t> slots) const;

  struct Extent {
    int64_t longest = 0;  // blocks of the longest sequence
    int64_t total = 0;
  };
  Result<Extent> Measure(std::span<const Handle> handles) const;
  // The convention of paged_attention: rows of max_blocks numbers, -1 past the last one in use.
  Status BlockTables(std::span<const Handle> handles, std::span<int32_t> tables, int64_t max_blocks,
                     std::span<int32_t> context_lens) const;
  // The convention of paged_decode_attention. indptr has one element more than handles.
  Status PageLists(std::span<const Handle> handles, std::span<int32_t> indptr, std::span<int32_t> indices,
                   std::span<int32_t> last_page_len) const;
  Stats GetStats() const;

 private:
  struct Sequence {
    int64_t id = 0;
    int64_t length = 0;
    uint64_t salt = 0;
    bool shares = true;           // false: its rows must not be published
    std::vector<int32_t> blocks;  // in order; `length` tokens need this many
    std::vector<int32_t> tokens;  // fewer than `length`: the rest are unknown
    std::vector<uint64_t> chain;  // serials of the leading blocks that are published
  };

  explicit Manager(const Config& config) : config_(config), pool_(int32_t(config.num_blocks)) {}
  int64_t BlocksFor(int64_t num_tokens) const;
  Result<Sequence*> Find(Handle handle) const;  // requires the lock
  Status CheckNew(int64_t seq_id) const;
  Status CheckTokens(int64_t before, int64_t num_tokens, std::span<const int32_t> tokens) const;
  Status CheckRoom(int64_t wanted, int64_t available) const;
  std::vector<BlockPool::Shared> FindPrefix(std::span<const int32_t> tokens, uint64_t salt) const;
  PrefixKey KeyOf(const Sequence& s, size_t block) const;
  Handle Insert(Sequence sequence);

  const Config config_;
  mutable std::mutex mutex_;
  BlockPool pool_;
  mutable std::unordered_map<Handle, Sequence> sequences_;
  std::unordered_map<int64_t, Handle> by_id_;
  Handle last_handle_ = 0;
  int64_t num_cached_tokens_ = 0, num_allocated_tokens_ = 0;
};

}  // namespace lz::kvcache
