#include "tokenize/split.h"

#include <array>

#include "tokenize/unicode.h"

namespace lz::tokenize {
namespace {

struct Known {
  std::string_view expression;
  Splitter splitter;
};
// Those of one splitter describe the same words.
constexpr auto kKnown = std::to_array<Known>({
    {R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)", Splitter::kGpt2},
    {R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)", Splitter::kGpt2},
    {R"('(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s)", Splitter::kGpt2},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     Splitter::kLlama3},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     Splitter::kQwen2},
    {R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s)",
     Splitter::kCl100k},
    {R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
     R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
     R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     Splitter::kO200k},
    {R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
     R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|)"
     R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     Splitter::kTekken},
});

// The bits of the code point at `at`, and where the next one begins.
struct Next {
  uint32_t bits;
  const char* end;
};
struct Reader {
  const CodeTable& table = CodeTable::Get();

  Next At(const char* at) const {
    const Code code = CodeAt(at);
    return {table[code.value], at + code.bytes};
  }
  // The end of the code points from `at` on that have a bit of `any` and none of `none`.
  const char* Run(const char* at, const char* end, uint32_t any, uint32_t none = 0) const {
    while (at < end) {
      const Next next = At(at);
      if (!(next.bits & any) || (next.bits & none)) break;
      at = next.end;
    }
    return at;
  }
  // The end of those that are neither letters, numbers nor white space.
  const char* Others(const char* at, const char* end) const {
    while (at < end) {
      const Next next = At(at);
      if (next.bits & (kLetter | kNumber | kSpace)) break;
      at = next.end;
    }
    return at;
  }
};

bool IsNewline(char c) { return c == '\r' || c == '\n'; }

// The end of 's, 't, 're, 've, 'm, 'll or 'd at `at`; `at` if there is none. The long s folds to s.
template <bool kAnyCase>
const char* Contraction(const char* at, const char* end) {
  if (at == end || *at != '\'' || end - at < 2) return at;
  const auto fold = [](char c) { return kAnyCase && c >= 'A' && c <= 'Z' ? char(c | 32) : c; };
  const char first = fold(at[1]);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return at + 2;
  if (end - at < 3) return at;
  const char second = fold(at[2]);
  if ((first == 'r' || first == 'v') && second == 'e') return at + 3;
  if (first == 'l' && second == 'l') return at + 3;
  if (kAnyCase && at[1] == '\xC5' && at[2] == '\xBF') return at + 3;  // U+017F
  return at;
}

// \s*[\r\n]+|\s+(?!\S)|\s+ over the white space [at, run); kEnd: \s++$ comes first.
template <bool kNewlines, bool kEnd>
const char* WhiteSpace(const Reader& reader, const char* at, const char* end) {
  const char* last = at;  // where the last code point begins
  const char* newline = nullptr;
  const char* run = at;
  while (run < end) {
    const Next next = reader.At(run);
    if (!(next.bits & kSpace)) break;
    if (kNewlines && IsNewline(*run)) newline = next.end;
    last = run;
    run = next.end;
  }
  if (kEnd && run == end) return run;
  if (newline) return newline;
  if (run == end || last == at) return run;
  return last;
}

const char* Gpt2(const char* at, const char* end) {
  const Reader reader;
  if (const char* word = Contraction<false>(at, end); word != at) return word;
  Next next = reader.At(at);
  const char* start = at;
  if (*at == ' ' && next.end < end) {
    start = next.end;
    next = reader.At(start);
  }
  if (next.bits & kLetter) return reader.Run(next.end, end, kLetter);
  if (next.bits & kNumber) return reader.Run(next.end, end, kNumber);
  if (!(next.bits & kSpace)) return reader.Others(next.end, end);
  return WhiteSpace<false, false>(reader, at, end);
}

// At most `kDigits` numbers from `at` on, the first of which has been read.
template <int kDigits>
const char* Numbers(const Reader& reader, const char* at, const char* end) {
  for (int more = kDigits - 1; more > 0 && at < end; --more) {
    const Next next = reader.At(at);
    if (!(next.bits & kNumber)) break;
    at = next.end;
  }
  return at;
}

//  ?[^\s\p{L}\p{N}]+[\r\n]*, with '/' at the end of o200k's; `at` if there is none.
template <bool kSlash>
const char* Symbols(const Reader& reader, const char* at, const char* end) {
  const char* start = *at == ' ' && at + 1 < end ? at + 1 : at;
  const char* stop = reader.Others(start, end);
  if (stop == start) return at;
  while (stop < end && (IsNewline(*stop) || (kSlash && *stop == '/'))) ++stop;
  return stop;
}

template <int kDigits, bool kEnd>
const char* Llama3(const char* at, const char* end) {
  const Reader reader;
  if (const char* word = Contraction<true>(at, end); word != at) return word;
  const Next first = reader.At(at);
  if (first.bits & kLetter) return reader.Run(first.end, end, kLetter);
  if (first.bits & kNumber) return Numbers<kDigits>(reader, first.end, end);
  if (!IsNewline(*at)) {
    const char* letters = reader.Run(first.end, end, kLetter);
    if (letters != first.end) return letters;
  }
  if (const char* symbols = Symbols<false>(reader, at, end); symbols != at) return symbols;
  return WhiteSpace<true, kEnd>(reader, at, end);
}

// The letters of o200k from `at` on: capitals, then small ones, or capitals alone; `at` if there are none. Modifiers,
// letters without case and marks are both.
const char* CasedLetters(const Reader& reader, const char* at, const char* end) {
  const auto is_small = [](uint32_t bits) { return (bits & (kLetter | kMark)) && !(bits & kUpper); };
  const char* capitals = at;
  const char* both = nullptr;  // the end of the last of the capitals that is also a small one
  while (capitals < end) {
    const Next next = reader.At(capitals);
    if (!(next.bits & (kLetter | kMark)) || (next.bits & kLower)) break;
    capitals = next.end;
    if (is_small(next.bits)) both = capitals;
  }
  const char* small = capitals;
  while (small < end) {
    const Next next = reader.At(small);
    if (!is_small(next.bits)) break;
    small = next.end;
  }
  if (small != capitals) return small;
  return both ? both : at;
}
const char* Capitals(const Reader& reader, const char* at, const char* end) {
  return reader.Run(at, end, kLetter | kMark, kLower);
}

template <bool kContractions>
const char* O200kLetters(const Reader& reader, const char* at, const char* end) {
  const Next first = reader.At(at);
  const bool prefix = !(first.bits & (kLetter | kNumber)) && !IsNewline(*at) && first.end < end;
  for (const auto find : {&CasedLetters, &Capitals}) {
    const char* word = at;
    if (prefix) {
      word = find(reader, first.end, end);
      if (word == first.end) word = at;
    }
    if (word == at) word = find(reader, at, end);
    if (word != at) return kContractions ? Contraction<true>(word, end) : word;
  }
  return at;
}

template <int kDigits, bool kContractions>
const char* O200k(const char* at, const char* end) {
  const Reader reader;
  if (const char* word = O200kLetters<kContractions>(reader, at, end); word != at) return word;
  const Next first = reader.At(at);
  if (first.bits & kNumber) return Numbers<kDigits>(reader, first.end, end);
  if (const char* symbols = Symbols<true>(reader, at, end); symbols != at) return symbols;
  return WhiteSpace<true, false>(reader, at, end);
}

const char* Whole(const char*, const char* end) { return end; }

}  // namespace

Splitter SplitterOf(std::string_view expression, bool tiktoken) {
  for (const Known& known : kKnown) {
    const bool possessive = expression.find("3}+") != expression.npos;
    if (known.expression == expression && (tiktoken || !possessive)) return known.splitter;
  }
  return Splitter::kWhole;
}

WordEnd WordEndOf(Splitter splitter) {
  switch (splitter) {
    case Splitter::kGpt2: return &Gpt2;
    case Splitter::kLlama3: return &Llama3<3, false>;
    case Splitter::kQwen2: return &Llama3<1, false>;
    case Splitter::kCl100k: return &Llama3<3, true>;
    case Splitter::kO200k: return &O200k<3, true>;
    case Splitter::kTekken: return &O200k<1, false>;
    case Splitter::kWhole: break;
  }
  return &Whole;
}

}  // namespace lz::tokenize
