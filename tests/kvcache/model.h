// A KV cache in plain terms: every sequence knows what stands in each of its rows, and so does the storage. Whatever
// the manager hands out must agree with it.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <vector>

#include "kvcache/manager.h"

namespace lz::kvcache {

// What a row of the storage holds: all tokens up to its own, as the K and V of a row depend on them.
using Row = std::vector<int32_t>;

// Drives a manager as a server would, writes every row that it hands out, and checks all sequences after each step.
class Model {
 public:
  Model(Manager& manager, bool known_tokens) : manager_(manager), known_tokens_(known_tokens) {
    storage_.resize(size_t(manager.config().num_blocks * manager.config().block_size));
  }

  void Allocate(int64_t id, const std::vector<int32_t>& tokens, uint64_t salt) {
    const std::span<const int32_t> told = known_tokens_ ? std::span(tokens) : std::span<const int32_t>();
    auto made = manager_.Allocate(id, int64_t(tokens.size()), told, salt);
    if (sequences_.contains(id)) {
      EXPECT_EQ(made.status().code(), StatusCode::kInvalidRequest);
      return;
    }
    if (!made.ok()) {
      EXPECT_EQ(made.status().code(), StatusCode::kCacheFull) << made.status().Text();
      return;
    }
    EXPECT_LE(made->num_cached_tokens, std::max<int64_t>(0, int64_t(tokens.size()) - 1));
    EXPECT_TRUE(handles_.insert(made->handle).second) << "a handle was used twice";
    sequences_[id] = {made->handle, salt, tokens};
    Write(id, made->num_cached_tokens);
  }
  void Append(int64_t id, const std::vector<int32_t>& tokens) {
    Sequence& s = sequences_.at(id);
    const std::span<const int32_t> told = known_tokens_ ? std::span(tokens) : std::span<const int32_t>();
    auto copy = manager_.Append(s.handle, int64_t(tokens.size()), told);
    if (!copy.ok()) {
      EXPECT_EQ(copy.status().code(), StatusCode::kCacheFull) << copy.status().Text();
      return;
    }
    Copy(*copy);
    const int64_t before = int64_t(s.tokens.size());
    s.tokens.insert(s.tokens.end(), tokens.begin(), tokens.end());
    Write(id, before);
  }
  void Fork(int64_t parent, int64_t id) {
    auto made = manager_.Fork(sequences_.at(parent).handle, id);
    if (sequences_.contains(id)) {
      EXPECT_EQ(made.status().code(), StatusCode::kInvalidRequest);
    } else if (!made.ok()) {
      EXPECT_EQ(made.status().code(), StatusCode::kCacheFull);
    } else {
      Copy(made->second);
      Sequence child = sequences_.at(parent);
      child.handle = made->first;
      sequences_[id] = child;
    }
  }
  void Truncate(int64_t id, int64_t length) {
    Sequence& s = sequences_.at(id);
    EXPECT_TRUE(manager_.Truncate(s.handle, length).ok());
    s.tokens.resize(size_t(length));
  }
  void Commit(int64_t id) { EXPECT_TRUE(manager_.Commit(sequences_.at(id).handle).ok()); }
  void Free(int64_t id) {
    const Handle handle = sequences_.at(id).handle;
    EXPECT_TRUE(manager_.Free(handle).ok());
    EXPECT_EQ(manager_.Free(handle).code(), StatusCode::kInvalidRequest);
    sequences_.erase(id);
  }

  bool has(int64_t id) const { return sequences_.contains(id); }
  int64_t length(int64_t id) const { return int64_t(sequences_.at(id).tokens.size()); }
  std::vector<int64_t> ids() const {
    std::vector<int64_t> all;
    for (const auto& [id, s] : sequences_) all.push_back(id);
    return all;
  }

  // Every row of every sequence holds what was written for it; blocks are counted; tables and lists say the same.
  void Check() const {
    std::set<int32_t> used;
    std::vector<Handle> handles;
    for (const auto& [id, s] : sequences_) {
      handles.push_back(s.handle);
      const int64_t n = int64_t(s.tokens.size());
      std::vector<int64_t> slots(size_t(n) + 1);
      ASSERT_TRUE(manager_.Slots(s.handle, 0, n, slots).ok());
      ASSERT_EQ(*manager_.Length(s.handle), n);
      for (int64_t i = 0; i < n; ++i) {
        ASSERT_EQ(storage_[size_t(slots[size_t(i)])], RowOf(s, i)) << "sequence " << id << ", row " << i;
      }
    }
    CheckTables(handles, used);
    const Stats stats = manager_.GetStats();
    EXPECT_EQ(stats.num_sequences, int64_t(sequences_.size()));
    EXPECT_EQ(stats.num_free + stats.num_idle + int64_t(used.size()), stats.num_blocks) << "a block was lost";
  }

 private:
  struct Sequence {
    Handle handle = 0;
    uint64_t salt = 0;
    std::vector<int32_t> tokens;
  };

  static Row RowOf(const Sequence& s, int64_t i) {
    Row row{int32_t(s.salt)};
    row.insert(row.end(), s.tokens.begin(), s.tokens.begin() + i + 1);
    return row;
  }
  void Write(int64_t id, int64_t begin) {
    const Sequence& s = sequences_.at(id);
    const int64_t end = int64_t(s.tokens.size());
    std::vector<int64_t> slots(size_t(end - begin));
    ASSERT_TRUE(manager_.Slots(s.handle, begin, end, slots).ok());
    for (int64_t i = begin; i < end; ++i) storage_[size_t(slots[size_t(i - begin)])] = RowOf(s, i);
  }
  void Copy(const BlockCopy& copy) {
    if (copy.from < 0) return;
    const int64_t size = manager_.config().block_size;
    for (int64_t i = 0; i < size; ++i) storage_[size_t(copy.to * size + i)] = storage_[size_t(copy.from * size + i)];
  }
  void CheckTables(const std::vector<Handle>& handles, std::set<int32_t>& used) const {
    const auto extent = manager_.Measure(handles);
    ASSERT_TRUE(extent.ok());
    const size_t n = handles.size();
    std::vector<int32_t> tables(n * size_t(extent->longest)), lens(n), indptr(n + 1), indices(size_t(extent->total)),
        last(n);
    ASSERT_TRUE(manager_.BlockTables(handles, tables, extent->longest, lens).ok());
    ASSERT_TRUE(manager_.PageLists(handles, indptr, indices, last).ok());
    const int64_t size = manager_.config().block_size;
    for (size_t i = 0; i < n; ++i) {
      const int64_t pages = indptr[i + 1] - indptr[i];
      EXPECT_EQ(lens[i], pages ? (pages - 1) * size + last[i] : 0);
      for (int64_t b = 0; b < extent->longest; ++b) {
        const int32_t block = tables[i * size_t(extent->longest) + size_t(b)];
        EXPECT_EQ(block, b < pages ? indices[size_t(indptr[i] + b)] : -1);
        if (block >= 0) used.insert(block);
      }
    }
  }

  Manager& manager_;
  const bool known_tokens_;
  std::vector<Row> storage_;
  std::map<int64_t, Sequence> sequences_;
  std::set<Handle> handles_;
};

}  // namespace lz::kvcache
