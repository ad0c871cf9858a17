// The ids of words that a thread has met, for one tokenizer: a fixed number of entries, a new word replaces an old one.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace lz::tokenize {

class WordCache {
 public:
  static constexpr size_t kLongest = 26, kMostIds = 9, kEntries = size_t{1} << 15;  // 2 MiB

  WordCache() : entries_(kEntries) {}
  // The ids of a word, empty if it is not in the cache.
  std::span<const int32_t> Find(std::string_view word, uint64_t hash) const {
    if (word.size() > kLongest) return {};
    const Entry& entry = entries_[hash >> kShift];
    if (entry.size != word.size() || std::memcmp(entry.word, word.data(), word.size()) != 0) return {};
    return {entry.ids, entry.num_ids};
  }
  void Set(std::string_view word, uint64_t hash, std::span<const int32_t> ids) {
    if (word.size() > kLongest || ids.empty() || ids.size() > kMostIds) return;
    Entry& entry = entries_[hash >> kShift];
    entry.size = uint8_t(word.size());
    entry.num_ids = uint8_t(ids.size());
    std::memcpy(entry.word, word.data(), word.size());
    std::memcpy(entry.ids, ids.data(), ids.size() * sizeof(int32_t));
  }

  // This thread's cache of a tokenizer; a thread has those of a few tokenizers, the last ones used.
  static WordCache& OfThread(uint64_t serial);

 private:
  static constexpr int kShift = 64 - 15;
  struct Entry {
    char word[kLongest];
    uint8_t size = 0;
    uint8_t num_ids = 0;
    int32_t ids[kMostIds];
  };
  static_assert(sizeof(Entry) == 64);
  std::vector<Entry> entries_;
};

}  // namespace lz::tokenize
