// KVCacheManager: sequences over the block pool.
#include "kvcache/manager.h"

#include <algorithm>
#include <limits>
#include <string>

namespace lz::kvcache {
namespace {

constexpr int64_t kMaxBlocks = int64_t{1} << 24;  // the metadata take about 100 bytes per block
constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

Status Invalid(std::string field, std::string wanted, std::string got, std::string fix = {}) {
  return {StatusCode::kInvalidRequest,
          {"KVCacheManager: " + std::move(field), std::move(wanted), std::move(got), std::move(fix)}};
}

Status RefuseStrategy(Strategy strategy) {
  const bool is_virtual = strategy == Strategy::kVirtual;
  return Invalid("kv_cache_strategy", "contiguous or paged", is_virtual ? "virtual" : "unified",
                 std::string("KV_STRATEGY_UNSUPPORTED: it needs ") +
                     (is_virtual ? "the device's virtual memory management" : "memory shared by CPU and device") +
                     ", which this build does not manage; choose paged, or contiguous for CUDA graphs");
}

}  // namespace

Result<std::unique_ptr<Manager>> Manager::Make(const Config& config) {
  const auto number = [](int64_t n) { return std::to_string(n); };
  if (config.strategy == Strategy::kVirtual || config.strategy == Strategy::kUnified) {
    return RefuseStrategy(config.strategy);
  }
  if (config.strategy != Strategy::kContiguous && config.strategy != Strategy::kPaged) {
    return Invalid("kv_cache_strategy", "contiguous or paged", number(int64_t(config.strategy)));
  }
  if (config.num_blocks < 1 || config.num_blocks > kMaxBlocks) {
    return Invalid("num_blocks", "1 to " + number(kMaxBlocks), number(config.num_blocks), "choose longer blocks");
  }
  if (config.block_size < 1 || config.block_size > kMaxInt32) {
    return Invalid("block_size", "1 to " + number(kMaxInt32), number(config.block_size));
  }
  if (config.prefix_sharing && config.strategy == Strategy::kContiguous) {
    return Invalid("prefix_sharing", "false with contiguous storage", "true", "sequences share blocks only if paged");
  }
  return std::unique_ptr<Manager>(new Manager(config));
}

int64_t Manager::BlocksFor(int64_t num_tokens) const {
  if (config_.strategy == Strategy::kContiguous) return 1;
  return (num_tokens + config_.block_size - 1) / config_.block_size;
}

Result<Manager::Sequence*> Manager::Find(Handle handle) const {
  const auto it = sequences_.find(handle);
  if (it != sequences_.end()) return &it->second;
  return Invalid("handle", "one of a sequence that is allocated", std::to_string(handle),
                 handle && handle <= last_handle_ ? "it was freed; allocate again"
                                                  : "use a handle that allocate or fork returned");
}

Status Manager::CheckNew(int64_t seq_id) const {
  if (!by_id_.contains(seq_id)) return {};
  return Invalid("seq_id", "one that is not in use", std::to_string(seq_id), "free that sequence first");
}

// `before`: the number of tokens that the sequence has.
Status Manager::CheckTokens(int64_t before, int64_t num_tokens, std::span<const int32_t> tokens) const {
  const std::string got = std::to_string(num_tokens);
  if (num_tokens < 0) return Invalid("num_tokens", "at least 0", got);
  if (num_tokens > kMaxInt32 - before) {
    return Invalid("num_tokens", "at most " + std::to_string(kMaxInt32 - before) + " more", got);
  }
  if (!tokens.empty() && int64_t(tokens.size()) != num_tokens) {
    return Invalid("tokens", "none or " + got, std::to_string(tokens.size()));
  }
  if (config_.strategy == Strategy::kContiguous && before + num_tokens > config_.block_size) {
    return {StatusCode::kCacheFull,
            {"KVCacheManager: num_tokens", "at most " + std::to_string(config_.block_size) + " tokens for a sequence",
             std::to_string(before + num_tokens), "contiguous storage cannot grow; make block_size larger"}};
  }
  return {};
}

Status Manager::CheckRoom(int64_t wanted, int64_t available) const {
  if (wanted <= available) return {};
  return {StatusCode::kCacheFull,
          {"KVCacheManager: num_blocks", std::to_string(wanted) + " more blocks",
           std::to_string(available) + " of " + std::to_string(config_.num_blocks) + " that no sequence uses",
           "free a sequence, or give the cache more blocks"}};
}

// The longest run of known leading blocks that ends before the last token.
std::vector<BlockPool::Shared> Manager::FindPrefix(std::span<const int32_t> tokens, uint64_t salt) const {
  std::vector<BlockPool::Shared> found;
  if (!config_.prefix_sharing || tokens.empty()) return found;
  const size_t size = size_t(config_.block_size);
  uint64_t parent = 0;
  for (size_t begin = 0; begin + size < tokens.size(); begin += size) {
    const auto shared = pool_.Find({parent, salt, tokens.subspan(begin, size)});
    if (!shared) break;
    found.push_back(*shared);
    parent = shared->serial;
  }
  return found;
}

Handle Manager::Insert(Sequence sequence) {
  by_id_[sequence.id] = ++last_handle_;
  sequences_.emplace(last_handle_, std::move(sequence));
  return last_handle_;
}

Result<Allocation> Manager::Allocate(int64_t seq_id, int64_t num_tokens, std::span<const int32_t> tokens,
                                     uint64_t salt) {
  const std::lock_guard lock(mutex_);
  LZ_RETURN_IF_ERROR(CheckNew(seq_id));
  LZ_RETURN_IF_ERROR(CheckTokens(0, num_tokens, tokens));
  const std::vector<BlockPool::Shared> prefix = FindPrefix(tokens, salt);
  const int64_t wanted = BlocksFor(num_tokens) - int64_t(prefix.size());
  const auto is_idle = [&](const BlockPool::Shared& s) { return pool_.references(s.block) == 0; };
  const int64_t revived = std::count_if(prefix.begin(), prefix.end(), is_idle);
  LZ_RETURN_IF_ERROR(CheckRoom(wanted, pool_.num_free() + pool_.num_idle() - revived));

  Sequence s;
  s.id = seq_id;
  s.length = num_tokens;
  s.salt = salt;
  s.tokens.assign(tokens.begin(), tokens.end());
  for (const BlockPool::Shared& shared : prefix) {
    pool_.AddReference(shared.block);
    s.blocks.push_back(shared.block);
    s.chain.push_back(shared.serial);
  }
  for (int64_t i = 0; i < wanted; ++i) s.blocks.push_back(pool_.Take());
  const int64_t cached = int64_t(prefix.size()) * config_.block_size;
  num_cached_tokens_ += cached;
  num_allocated_tokens_ += num_tokens;
  return Allocation{Insert(std::move(s)), cached};
}

Result<BlockCopy> Manager::Append(Handle handle, int64_t num_tokens, std::span<const int32_t> tokens) {
  const std::lock_guard lock(mutex_);
  auto found = Find(handle);
  if (!found.ok()) return found.TakeStatus();
  Sequence& s = **found;
  LZ_RETURN_IF_ERROR(CheckTokens(s.length, num_tokens, tokens));
  if (!tokens.empty() && int64_t(s.tokens.size()) != s.length) {
    return Invalid("tokens", "none, because earlier tokens of the sequence are not known",
                   std::to_string(tokens.size()), "pass tokens from the first call on, or never");
  }
  BlockCopy copy;
  if (num_tokens == 0) return copy;
  const bool into_last = s.length % config_.block_size != 0;  // the first new row goes to a block that has rows
  const bool shared = into_last && pool_.references(s.blocks.back()) > 1;
  const int64_t wanted = BlocksFor(s.length + num_tokens) - int64_t(s.blocks.size());
  LZ_RETURN_IF_ERROR(CheckRoom(wanted + shared, pool_.num_free() + pool_.num_idle()));

  if (shared) {
    copy = {s.blocks.back(), pool_.Take()};
    pool_.Release(copy.from);
    s.blocks.back() = copy.to;
  } else if (into_last) {
    pool_.Unpublish(s.blocks.back());
  }
  for (int64_t i = 0; i < wanted; ++i) s.blocks.push_back(pool_.Take());
  s.tokens.insert(s.tokens.end(), tokens.begin(), tokens.end());
  s.length += num_tokens;
  num_allocated_tokens_ += num_tokens;
  return copy;
}

PrefixKey Manager::KeyOf(const Sequence& s, size_t block) const {
  const size_t size = size_t(config_.block_size);
  return {block ? s.chain[block - 1] : 0, s.salt, std::span(s.tokens).subspan(block * size, size)};
}

Status Manager::Commit(Handle handle) {
  const std::lock_guard lock(mutex_);
  auto found = Find(handle);
  if (!found.ok()) return found.TakeStatus();
  Sequence& s = **found;
  if (!config_.prefix_sharing || !s.shares) return {};
  const size_t full = s.tokens.size() / size_t(config_.block_size);
  while (s.chain.size() < full) {
    const size_t block = s.chain.size();
    s.chain.push_back(pool_.Publish(s.blocks[block], KeyOf(s, block)));
  }
  return {};
}

Status Manager::Truncate(Handle handle, int64_t num_tokens) {
  const std::lock_guard lock(mutex_);
  auto found = Find(handle);
  if (!found.ok()) return found.TakeStatus();
  Sequence& s = **found;
  if (num_tokens < 0 || num_tokens > s.length) {
    return Invalid("num_tokens", "0 to " + std::to_string(s.length), std::to_string(num_tokens));
  }
  while (int64_t(s.blocks.size()) > BlocksFor(num_tokens)) {
    pool_.Release(s.blocks.back());
    s.blocks.pop_back();
  }
  s.length = num_tokens;
  s.tokens.resize(std::min(s.tokens.size(), size_t(num_tokens)));
  s.chain.resize(std::min(s.chain.size(), size_t(num_tokens / config_.block_size)));
  return {};
}

Result<std::pair<Handle, BlockCopy>> Manager::Fork(Handle parent, int64_t seq_id) {
  const std::lock_guard lock(mutex_);
  auto found = Find(parent);
  if (!found.ok()) return found.TakeStatus();
  LZ_RETURN_IF_ERROR(CheckNew(seq_id));
  Sequence child = **found;
  child.id = seq_id;
  BlockCopy copy;
  if (config_.strategy == Strategy::kContiguous) {
    LZ_RETURN_IF_ERROR(CheckRoom(1, pool_.num_free()));
    copy = {child.blocks[0], pool_.Take()};
    child.blocks[0] = copy.to;
  } else {
    for (int32_t block : child.blocks) pool_.AddReference(block);
  }
  return std::pair(Insert(std::move(child)), copy);
}

Status Manager::Free(Handle handle) {
  const std::lock_guard lock(mutex_);
  auto found = Find(handle);
  if (!found.ok()) return found.TakeStatus();
  Sequence& s = **found;
  // From the end: a prefix without its continuation is still useful, a continuation without its prefix is not.
  for (auto it = s.blocks.rbegin(); it != s.blocks.rend(); ++it) pool_.Release(*it);
  by_id_.erase(s.id);
  sequences_.erase(handle);
  return {};
}

void Manager::ForgetPrefixes() {
  const std::lock_guard lock(mutex_);
  pool_.UnpublishAll();
  // Sequences keep their rows, but what they commit from now on would continue forgotten prefixes.
  for (auto& [handle, s] : sequences_) {
    s.shares = false;
    s.chain.clear();
  }
}

}  // namespace lz::kvcache
