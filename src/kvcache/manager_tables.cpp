// The arguments for kernels from a KV cache: slots, block tables and page lists of sequences; and the counters.
#include <algorithm>
#include <string>

#include "kvcache/manager.h"

namespace lz::kvcache {
namespace {

Status TooSmall(std::string field, int64_t wanted, size_t got) {
  return {StatusCode::kInvalidRequest,
          {"KVCacheManager: " + std::move(field), "room for " + std::to_string(wanted) + " numbers",
           std::to_string(got), "measure again: a sequence may have grown"}};
}

}  // namespace

Result<int64_t> Manager::Length(Handle handle) const {
  const std::lock_guard lock(mutex_);
  auto found = Find(handle);
  if (!found.ok()) return found.TakeStatus();
  return (*found)->length;
}

Status Manager::Slots(Handle handle, int64_t begin, int64_t end, std::span<int64_t> slots) const {
  const std::lock_guard lock(mutex_);
  auto found = Find(handle);
  if (!found.ok()) return found.TakeStatus();
  const Sequence& s = **found;
  if (begin < 0 || begin > end || end > s.length) {
    return {StatusCode::kInvalidRequest,
            {"KVCacheManager: slots", "0 <= begin <= end <= " + std::to_string(s.length),
             std::to_string(begin) + " and " + std::to_string(end), "append before asking for new rows"}};
  }
  if (int64_t(slots.size()) < end - begin) return TooSmall("slots", end - begin, slots.size());
  const int64_t size = config_.block_size;
  for (int64_t i = begin; i < end; ++i) slots[size_t(i - begin)] = s.blocks[size_t(i / size)] * size + i % size;
  return {};
}

Result<Manager::Extent> Manager::Measure(std::span<const Handle> handles) const {
  const std::lock_guard lock(mutex_);
  Extent extent;
  for (Handle handle : handles) {
    auto found = Find(handle);
    if (!found.ok()) return found.TakeStatus();
    const int64_t n = int64_t((*found)->blocks.size());
    extent.longest = std::max(extent.longest, n);
    extent.total += n;
  }
  return extent;
}

Status Manager::BlockTables(std::span<const Handle> handles, std::span<int32_t> tables, int64_t max_blocks,
                            std::span<int32_t> context_lens) const {
  const std::lock_guard lock(mutex_);
  const int64_t rows = int64_t(handles.size());
  if (max_blocks < 0 || (rows > 0 && int64_t(tables.size()) / rows < max_blocks)) {
    return TooSmall("block_tables", rows * std::max<int64_t>(max_blocks, 0), tables.size());
  }
  if (int64_t(context_lens.size()) < rows) return TooSmall("context_lens", rows, context_lens.size());
  for (Handle handle : handles) {  // validates all before writing
    auto found = Find(handle);
    if (!found.ok()) return found.TakeStatus();
    const int64_t n = int64_t((*found)->blocks.size());
    if (n > max_blocks) return TooSmall("block_tables: a row", n, size_t(max_blocks));
  }
  for (size_t i = 0; i < handles.size(); ++i) {
    const Sequence& s = sequences_.at(handles[i]);
    auto row = tables.subspan(i * size_t(max_blocks), size_t(max_blocks));
    std::fill(std::copy(s.blocks.begin(), s.blocks.end(), row.begin()), row.end(), -1);
    context_lens[i] = int32_t(s.length);
  }
  return {};
}

Status Manager::PageLists(std::span<const Handle> handles, std::span<int32_t> indptr, std::span<int32_t> indices,
                          std::span<int32_t> last_page_len) const {
  const std::lock_guard lock(mutex_);
  if (indptr.size() < handles.size() + 1) return TooSmall("kv_indptr", int64_t(handles.size()) + 1, indptr.size());
  if (last_page_len.size() < handles.size()) {
    return TooSmall("kv_last_page_len", int64_t(handles.size()), last_page_len.size());
  }
  int64_t total = 0;
  for (Handle handle : handles) {
    auto found = Find(handle);
    if (!found.ok()) return found.TakeStatus();
    total += int64_t((*found)->blocks.size());
  }
  if (total > int64_t(indices.size()) || total > INT32_MAX) return TooSmall("kv_indices", total, indices.size());
  int32_t at = 0;
  for (size_t i = 0; i < handles.size(); ++i) {
    const Sequence& s = sequences_.at(handles[i]);
    indptr[i] = at;
    std::copy(s.blocks.begin(), s.blocks.end(), indices.begin() + at);
    at += int32_t(s.blocks.size());
    last_page_len[i] = s.length ? int32_t((s.length - 1) % config_.block_size + 1) : 0;
  }
  indptr[handles.size()] = at;
  return {};
}

Stats Manager::GetStats() const {
  const std::lock_guard lock(mutex_);
  return {.num_blocks = config_.num_blocks,
          .num_free = pool_.num_free(),
          .num_idle = pool_.num_idle(),
          .num_sequences = int64_t(sequences_.size()),
          .num_evictions = pool_.num_evictions(),
          .num_cached_tokens = num_cached_tokens_,
          .num_allocated_tokens = num_allocated_tokens_};
}

}  // namespace lz::kvcache
