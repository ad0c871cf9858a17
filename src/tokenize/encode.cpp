// A text to ids: added tokens, normalizer, pre-tokenizer, merges, template.
#include <algorithm>

#include "tokenize/merge.h"
#include "tokenize/spec_internal.h"
#include "tokenize/tokenizer.h"
#include "tokenize/unicode.h"

namespace lz::tokenize {
namespace {

bool IsTail(char c) { return (c & 0xC0) == 0x80; }

// Characters that begin in [0, at) of a text, for offsets that only grow.
class CharacterCounter {
 public:
  explicit CharacterCounter(std::string_view text) : text_(text) {}
  int32_t Before(size_t at) {
    if (at < at_) {
      at_ = 0;
      count_ = 0;
    }
    for (; at_ < at; ++at_) count_ += !IsTail(text_[at_]);
    return count_;
  }

 private:
  std::string_view text_;
  size_t at_ = 0;
  int32_t count_ = 0;
};

size_t SpaceBefore(std::string_view text, size_t end, size_t least) {
  const CodeTable& table = CodeTable::Get();
  while (end > least) {
    size_t at = end - 1;
    while (at > least && IsTail(text[at])) --at;
    if (!(table[CodeAt(text.data() + at).value] & kSpace)) break;
    end = at;
  }
  return end;
}
size_t SpaceAfter(std::string_view text, size_t at) {
  const CodeTable& table = CodeTable::Get();
  while (at < text.size()) {
    const Code code = CodeAt(text.data() + at);
    if (!(table[code.value] & kSpace)) break;
    at += code.bytes;
  }
  return at;
}

// The numbers of spaces at both ends of a piece of the text, and those of all white space and of the letter that is
// used for a space in the byte-level alphabet.
std::pair<int32_t, int32_t> Spaces(std::string_view piece) {
  const size_t first = std::min(piece.find_first_not_of(' '), piece.size());
  const size_t last = piece.find_last_not_of(' ');
  return {int32_t(first), int32_t(last == piece.npos ? piece.size() : piece.size() - 1 - last)};
}
std::pair<int32_t, int32_t> Blanks(std::string_view piece) {
  const CodeTable& table = CodeTable::Get();
  int32_t leading = 0, trailing = 0;
  bool only = true;
  for (size_t at = 0; at < piece.size();) {
    const Code code = CodeAt(piece.data() + at);
    const bool blank = (table[code.value] & kSpace) || code.value == 0x120;
    only &= blank;
    leading += only;
    trailing = blank ? trailing + 1 : 0;
    at += code.bytes;
  }
  return {leading, trailing};
}

bool AllHave(std::string_view text, uint16_t bits) {
  const CodeTable& table = CodeTable::Get();
  for (const char *at = text.data(), *end = at + text.size(); at < end;) {
    if (!(*at & 0x80)) {  // every form leaves ASCII as it is
      ++at;
      continue;
    }
    const Code code = CodeAt(at);
    if (!(table[code.value] & bits)) return false;
    at += code.bytes;
  }
  return true;
}

std::string ReplaceAll(std::string_view text, std::string_view from, std::string_view to) {
  std::string result;
  result.reserve(text.size() + text.size() / 4);
  for (size_t at = 0;;) {
    const size_t found = from.size() == 1 ? text.find(from[0], at) : text.find(from, at);
    result.append(text.substr(at, found - at));
    if (found == text.npos) return result;
    result.append(to);
    at = found + from.size();
  }
}

}  // namespace

struct Tokenizer::Job {
  std::string_view text;  // all of it
  std::vector<int32_t>* ids;
  std::vector<Span>* spans;
  WordCache* cache;
  CharacterCounter counter;
  size_t first_span;
  size_t at = 0;  // bytes of `text` before the next id
  bool failed = false;
  std::vector<int32_t> symbols = {};
  std::string changed = {}, marked = {};

  // An id of the next `bytes` of the text. `blanks`: how many of its characters at both ends are white space, which
  // byte-level post-processors leave out of its span.
  void Add(int32_t id, size_t bytes, std::pair<int32_t, int32_t> blanks, bool keep_one) {
    ids->push_back(id);
    if (!spans) return;
    Span span{counter.Before(at + 1) - 1, counter.Before(at + bytes)};
    at += bytes;
    auto [leading, trailing] = blanks;
    if (keep_one && leading == 1 && (spans->size() == first_span || span.start == 0)) leading = 0;
    span.start = std::min(span.start + leading, span.end);
    if (trailing > 0 && span.end >= trailing) span.end = std::max(span.end - trailing, span.start);
    spans->push_back(span);
  }
};

bool Tokenizer::FindAdded(std::string_view text, size_t from, bool normalized, Match* match) const {
  const AddedIndex& index = normalized ? normalized_ : raw_;
  for (size_t at = from; at < text.size(); ++at) {
    for (uint32_t i : index.by_first[uint8_t(text[at])]) {
      const AddedToken& added = spec_.added[i];
      if (text.compare(at, added.content.size(), added.content) != 0) continue;
      *match = {&added, at, at + added.content.size()};
      return true;
    }
  }
  return false;
}

// Calls on_text and on_token in order; stops and returns false where on_text does.
template <class OnToken, class OnText>
bool Tokenizer::SplitAdded(std::string_view text, bool normalized, OnToken&& on_token, OnText&& on_text) const {
  if (!(normalized ? normalized_ : raw_).any) return text.empty() || on_text(text, 0);
  size_t done = 0, from = 0;
  Match match;
  while (FindAdded(text, from, normalized, &match)) {
    from = match.end;
    if (match.token->lstrip) match.start = SpaceBefore(text, match.start, done);
    if (match.token->rstrip) match.end = SpaceAfter(text, match.end);
    if (done < match.start && !on_text(text.substr(done, match.start - done), done)) return false;
    on_token(match);
    done = match.end;
    from = std::max(from, done);
  }
  return done >= text.size() || on_text(text.substr(done), done);
}

// False for a text that a step may change in a way that is not computed here.
bool Tokenizer::Normalize(std::string_view* text, std::string* changed) const {
  for (const Normalizer& step : spec_.normalizers) {
    switch (step.kind) {
      case Normalizer::kStays:
        if (!AllHave(*text, step.bits)) return false;
        break;
      case Normalizer::kLowercase: {
        if (!AllHave(*text, step.bits)) return false;
        std::string lower(*text);
        for (char& c : lower) c = c >= 'A' && c <= 'Z' ? char(c | 32) : c;
        *changed = std::move(lower);
        *text = *changed;
        break;
      }
      case Normalizer::kPrepend:
        if (text->empty()) break;
        *changed = step.text + std::string(*text);
        *text = *changed;
        break;
      case Normalizer::kReplace:
        if (text->find(step.from) == text->npos) break;
        *changed = ReplaceAll(*text, step.from, step.text);
        *text = *changed;
        break;
    }
  }
  return true;
}

void Tokenizer::Symbols(std::string_view word, std::vector<int32_t>* symbols) const {
  if (spec_.byte_level) {
    bool unknown = false;
    for (char c : word) {
      int32_t id = bytes_[uint8_t(c)];
      const bool is_unknown = id < 0;
      if (is_unknown) id = unknown && spec_.fuse_unknown ? -1 : spec_.unknown;
      if (id >= 0) symbols->push_back(id);
      unknown = is_unknown;
    }
    return;
  }
  bool unknown = false;
  for (size_t at = 0; at < word.size();) {
    const std::string_view one = word.substr(at, CodeAt(word.data() + at).bytes);
    at += one.size();
    const int32_t id = characters_.Find(one);
    const bool is_unknown = id < 0 && !spec_.byte_fallback;
    if (id >= 0) {
      symbols->push_back(id);
    } else if (spec_.byte_fallback) {
      for (char c : one) symbols->push_back(bytes_[uint8_t(c)]);
    } else if (spec_.unknown >= 0 && !(unknown && spec_.fuse_unknown)) {
      symbols->push_back(spec_.unknown);
    }
    unknown = is_unknown;
  }
}

void Tokenizer::EncodeWord(Job& job, std::string_view word) const {
  const uint64_t hash = HashBytes(word.data(), word.size());
  std::span<const int32_t> ids = job.cache->Find(word, hash);
  int32_t whole;
  if (ids.empty()) {
    whole = words_.Find(word, hash);
    if (whole >= 0) {
      ids = {&whole, 1};
    } else {
      job.symbols.clear();
      Symbols(word, &job.symbols);
      MergeSymbols(pairs_, &job.symbols);
      ids = job.symbols;
    }
    job.cache->Set(word, hash, ids);
  }
  if (!job.spans) {
    job.ids->insert(job.ids->end(), ids.begin(), ids.end());
    return;
  }
  for (int32_t id : ids) {
    const std::string& piece = texts_[size_t(id)];
    job.Add(id, piece.size(), spec_.trim_offsets ? Spaces(piece) : std::pair(0, 0), spec_.trim_prefix_space);
  }
}

void Tokenizer::AddAdded(Job& job, std::string_view text, const Match& match) const {
  const std::string_view piece = text.substr(match.start, match.end - match.start);
  const auto blanks = job.spans && spec_.trim_offsets ? Blanks(piece) : std::pair(0, 0);
  job.Add(match.token->id, piece.size(), blanks, spec_.trim_prefix_space);
}

void Tokenizer::EncodeWords(Job& job, std::string_view text) const {
  for (const char *at = text.data(), *end = at + text.size(); at < end;) {
    const char* const stop = word_end_(at, end);
    EncodeWord(job, {at, size_t(stop - at)});
    at = stop;
  }
}

// Text in which spaces are marks.
void Tokenizer::EncodeMarked(Job& job, std::string_view text) const {
  const bool at_each = spec_.metaspace && spec_.metaspace_split;  // every mark begins a word
  if (!at_each && !divides_at_mark_) {
    if (!text.empty()) EncodeWord(job, text);
    return;
  }
  for (size_t at = 0; at < text.size();) {
    size_t from = at;
    if (at_each) {
      from += text.substr(at, kMetaspace.size()) == kMetaspace ? kMetaspace.size() : 0;
    } else {
      while (text.substr(from, kMetaspace.size()) == kMetaspace) from += kMetaspace.size();
    }
    const size_t stop = std::min(text.find(kMetaspace, from), text.size());
    EncodeWord(job, text.substr(at, stop - at));
    at = stop;
  }
}

void Tokenizer::EncodePiece(Job& job, std::string_view text, bool first) const {
  if (spec_.metaspace) {
    job.marked = ReplaceAll(text, " ", kMetaspace);
    const bool prefix = spec_.prefix == Spec::kAlways || (spec_.prefix == Spec::kFirst && first);
    if (prefix && !std::string_view(job.marked).starts_with(kMetaspace)) job.marked.insert(0, kMetaspace);
    return EncodeMarked(job, job.marked);
  }
  if (!spec_.byte_level) return EncodeMarked(job, text);
  std::string spaced;
  if (spec_.add_prefix_space && !text.starts_with(' ')) text = spaced.append(" ").append(text);
  if (!spec_.single_digits) return EncodeWords(job, text);
  const CodeTable& table = CodeTable::Get();
  size_t from = 0;
  for (size_t at = 0; at < text.size();) {
    const Code code = CodeAt(text.data() + at);
    if (table[code.value] & kNumber) {
      EncodeWords(job, text.substr(from, at - from));
      from = at + code.bytes;
      EncodeWords(job, text.substr(at, code.bytes));
    }
    at += code.bytes;
  }
  EncodeWords(job, text.substr(from));
}

// A text between added tokens.
bool Tokenizer::EncodeText(Job& job, std::string_view text) const {
  const size_t begin = size_t(text.data() - job.text.data());
  std::string_view normal = text;
  if (!Normalize(&normal, &job.changed)) return false;
  return SplitAdded(
      normal, true,
      [&](const Match& match) {
        job.at = begin + match.start;
        AddAdded(job, normal, match);
      },
      [&](std::string_view piece, size_t at) {
        job.at = begin + at;
        EncodePiece(job, piece, begin + at == 0);
        return true;
      });
}

bool Tokenizer::Serves(std::string_view text) const {
  const auto& steps = spec_.normalizers;
  if (std::none_of(steps.begin(), steps.end(), [](const Normalizer& step) { return step.bits != 0; })) return true;
  std::string changed;
  return SplitAdded(
      text, false, [](const Match&) {}, [&](std::string_view piece, size_t) { return Normalize(&piece, &changed); });
}

bool Tokenizer::Encode(std::string_view text, bool specials, std::vector<int32_t>* ids,
                       std::vector<Span>* spans) const {
  if (!IsUtf8(text) || (spans && !has_offsets_)) return false;
  const size_t ids_before = ids->size(), spans_before = spans ? spans->size() : 0;
  const auto add_around = [&](const std::vector<int32_t>& around) {
    if (!specials) return;
    ids->insert(ids->end(), around.begin(), around.end());
    if (spans) spans->insert(spans->end(), around.size(), Span{0, 0});
  };
  add_around(spec_.before);
  Job job{text, ids, spans, &WordCache::OfThread(serial_), CharacterCounter(text), spans ? spans->size() : 0};
  const bool done = SplitAdded(
      text, false,
      [&](const Match& match) {
        job.at = match.start;
        AddAdded(job, text, match);
      },
      [&](std::string_view piece, size_t) { return EncodeText(job, piece); });
  if (!done) {
    ids->resize(ids_before);
    if (spans) spans->resize(spans_before);
    return false;
  }
  add_around(spec_.after);
  return true;
}

}  // namespace lz::tokenize
