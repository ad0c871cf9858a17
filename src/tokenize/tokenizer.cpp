#include "tokenize/tokenizer.h"

#include <algorithm>
#include <atomic>
#include <cstdio>

#include "tokenize/merge.h"
#include "tokenize/spec_internal.h"
#include "tokenize/unicode.h"

namespace lz::tokenize {

Result<std::shared_ptr<const Tokenizer>> Tokenizer::Make(std::string_view json) {
  auto spec = ReadSpec(json);
  if (!spec.ok()) return spec.TakeStatus();
  std::shared_ptr<Tokenizer> tokenizer(new Tokenizer(std::move(*spec)));
  LZ_RETURN_IF_ERROR(tokenizer->Prepare());
  return std::shared_ptr<const Tokenizer>(std::move(tokenizer));
}

Tokenizer::Tokenizer(Spec spec) : spec_(std::move(spec)) {
  static std::atomic<uint64_t> next{1};
  serial_ = next.fetch_add(1, std::memory_order_relaxed);
}

Status Tokenizer::Prepare() {
  word_end_ = WordEndOf(spec_.splitter);
  pairs_.Reserve(spec_.merges.size());
  for (const Merge& merge : spec_.merges) pairs_.Set(merge.left, merge.right, {merge.rank, merge.id});
  spec_.merges = {};
  bytes_.fill(-1);
  is_special_.resize(spec_.tokens.size());
  for (const AddedToken& added : spec_.added) is_special_[size_t(added.id)] |= added.special;
  PrepareTokenTexts();
  if (spec_.byte_level) {
    PrepareBytes();
  } else {
    LZ_RETURN_IF_ERROR(PrepareCharacters());
  }
  PrepareWords();
  PrepareAdded();
  return {};
}

// The piece of text of each token of the model.
void Tokenizer::PrepareTokenTexts() {
  texts_.resize(spec_.tokens.size());
  for (size_t id = 0; id < texts_.size(); ++id) {
    if (!spec_.in_model[id]) continue;
    if (!spec_.byte_level) {
      texts_[id] = spec_.tokens[id];
    } else if (!BytesOf(spec_.tokens[id], &texts_[id])) {
      texts_[id].clear();
    }
  }
}

void Tokenizer::PrepareBytes() {
  for (size_t id = 0; id < texts_.size(); ++id) {
    if (texts_[id].size() == 1) bytes_[uint8_t(texts_[id][0])] = int32_t(id);
  }
  const bool all = std::none_of(bytes_.begin(), bytes_.end(), [](int32_t id) { return id < 0; });
  const bool same_length = std::all_of(spec_.normalizers.begin(), spec_.normalizers.end(), [](const Normalizer& step) {
    return step.kind == Normalizer::kStays || step.kind == Normalizer::kLowercase;
  });
  has_offsets_ = all && same_length && !spec_.add_prefix_space;
}

Status Tokenizer::PrepareCharacters() {
  size_t characters = 0, bytes = 0;
  for (const auto& text : texts_) characters += !text.empty() && CodeAt(text.data()).bytes == text.size();
  characters_.Reserve(characters);
  for (size_t id = 0; id < texts_.size(); ++id) {
    const std::string& text = texts_[id];
    if (!text.empty() && CodeAt(text.data()).bytes == text.size()) characters_.Set(text, int32_t(id));
    unsigned value = 0;
    char end = 0;
    if (text.size() == 6 && std::sscanf(text.c_str(), "<0x%2X%c", &value, &end) == 2 && end == '>') {
      char name[8];
      std::snprintf(name, sizeof(name), "<0x%02X>", value);
      if (text == name) bytes_[value & 255] = int32_t(id);
    }
  }
  for (int32_t id : bytes_) bytes += id >= 0;
  if (spec_.byte_fallback && bytes != 256) {
    if (bytes != 0) return Unsupported("model.byte_fallback", "all tokens <0x00> to <0xFF>", std::to_string(bytes));
    spec_.byte_fallback = false;
  }
  // A word is a run of marks and what follows up to the next mark, if nothing joins across its beginning.
  divides_at_mark_ = characters_.Find(kMetaspace) >= 0;
  for (size_t id = 0; id < texts_.size() && divides_at_mark_; ++id) {
    const std::string_view text = texts_[id];
    size_t at = 0;
    while (text.substr(at, kMetaspace.size()) == kMetaspace) at += kMetaspace.size();
    divides_at_mark_ = text.find(kMetaspace, at) == text.npos;
  }
  return {};
}

// Which words are one token: all tokens if merges are ignored for them, else those that their merges make.
void Tokenizer::PrepareWords() {
  words_.Reserve(texts_.size());
  std::vector<int32_t> symbols;
  for (size_t id = 0; id < texts_.size(); ++id) {
    if (texts_[id].empty()) continue;
    if (!spec_.ignore_merges) {
      symbols.clear();
      Symbols(texts_[id], &symbols);
      MergeSymbols(pairs_, &symbols);
      if (symbols.size() != 1 || symbols[0] != int32_t(id)) continue;
    }
    words_.Set(texts_[id], int32_t(id));
  }
}

void Tokenizer::PrepareAdded() {
  for (uint32_t i = 0; i < spec_.added.size(); ++i) {
    const AddedToken& added = spec_.added[i];
    AddedIndex& index = added.normalized ? normalized_ : raw_;
    index.by_first[uint8_t(added.content[0])].push_back(i);
    index.any = true;
  }
  for (AddedIndex* index : {&raw_, &normalized_}) {
    for (auto& list : index->by_first) {
      std::stable_sort(list.begin(), list.end(), [&](uint32_t a, uint32_t b) {
        return spec_.added[a].content.size() > spec_.added[b].content.size();
      });
    }
  }
}

WordCache& WordCache::OfThread(uint64_t serial) {
  struct Kept {
    uint64_t serial = 0, used = 0;
    std::unique_ptr<WordCache> cache;
  };
  thread_local Kept kept[4];
  thread_local uint64_t clock = 0;
  Kept* oldest = &kept[0];
  for (Kept& one : kept) {
    if (one.serial == serial) {
      one.used = ++clock;
      return *one.cache;
    }
    if (one.used < oldest->used) oldest = &one;
  }
  *oldest = {serial, ++clock, std::make_unique<WordCache>()};
  return *oldest->cache;
}

}  // namespace lz::tokenize
