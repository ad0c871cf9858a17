// Tables of a tokenizer that are read for every word: open addressing, at most half full, made once.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

namespace lz::tokenize {

inline uint64_t Mix(uint64_t a, uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  return uint64_t(product) ^ uint64_t(product >> 64);
}

// Of the bytes of a word. Words are short: one or two multiplications.
inline uint64_t HashBytes(const char* at, size_t size) {
  constexpr uint64_t kA = 0x9E3779B97F4A7C15u, kB = 0xD6E8FEB86659FD93u;
  uint64_t hash = size * kB, low = 0, high = 0;
  while (size > 16) {
    std::memcpy(&low, at, 8);
    std::memcpy(&high, at + 8, 8);
    hash = Mix(low ^ hash ^ kA, high ^ kB);
    at += 16;
    size -= 16;
  }
  low = high = 0;
  if (size >= 8) {
    std::memcpy(&low, at, 8);
    std::memcpy(&high, at + size - 8, 8);
  } else if (size >= 4) {
    uint32_t first, last;
    std::memcpy(&first, at, 4);
    std::memcpy(&last, at + size - 4, 4);
    low = first;
    high = last;
  } else if (size > 0) {
    low = uint64_t(uint8_t(at[0])) | uint64_t(uint8_t(at[size / 2])) << 8 | uint64_t(uint8_t(at[size - 1])) << 16;
  }
  return Mix(low ^ hash ^ kA, high ^ kB);
}

inline size_t SlotsFor(size_t entries) {
  size_t slots = 16;
  while (slots < 2 * entries) slots *= 2;
  return slots;
}

// A pair of tokens -> the rank of their merge and what it makes.
class PairTable {
 public:
  struct Found {
    int32_t rank, id;
  };
  static constexpr int32_t kNone = INT32_MAX;

  void Reserve(size_t pairs) { slots_.assign(SlotsFor(pairs), Slot{kEmpty, {kNone, -1}}); }
  // A later pair replaces an earlier equal one.
  void Set(int32_t left, int32_t right, Found found) {
    const uint64_t key = Key(left, right);
    size_t at = Start(key);
    while (slots_[at].key != kEmpty && slots_[at].key != key) at = (at + 1) & (slots_.size() - 1);
    slots_[at] = {key, found};
  }
  Found Find(int32_t left, int32_t right) const {
    const uint64_t key = Key(left, right);
    for (size_t at = Start(key);; at = (at + 1) & (slots_.size() - 1)) {
      if (slots_[at].key == key) return slots_[at].found;
      if (slots_[at].key == kEmpty) return {kNone, -1};
    }
  }

 private:
  struct Slot {
    uint64_t key;
    Found found;
  };
  static constexpr uint64_t kEmpty = ~uint64_t{0};
  static uint64_t Key(int32_t left, int32_t right) { return uint64_t(uint32_t(left)) << 32 | uint32_t(right); }
  size_t Start(uint64_t key) const { return Mix(key, 0x9E3779B97F4A7C15u) & (slots_.size() - 1); }

  std::vector<Slot> slots_;
};

// The bytes of a word -> the token that they become. The bytes belong to the caller.
class WordTable {
 public:
  void Reserve(size_t words) { slots_.assign(SlotsFor(words), Slot{0, -1, {}}); }
  void Set(std::string_view word, int32_t id) {
    const uint64_t hash = HashBytes(word.data(), word.size());
    size_t at = hash & (slots_.size() - 1);
    while (slots_[at].id >= 0 && slots_[at].word != word) at = (at + 1) & (slots_.size() - 1);
    slots_[at] = {hash, id, word};
  }
  int32_t Find(std::string_view word, uint64_t hash) const {
    for (size_t at = hash & (slots_.size() - 1);; at = (at + 1) & (slots_.size() - 1)) {
      if (slots_[at].id < 0) return -1;
      if (slots_[at].hash == hash && slots_[at].word == word) return slots_[at].id;
    }
  }
  int32_t Find(std::string_view word) const { return Find(word, HashBytes(word.data(), word.size())); }

 private:
  struct Slot {
    uint64_t hash;
    int32_t id;
    std::string_view word;
  };
  std::vector<Slot> slots_;
};

}  // namespace lz::tokenize
