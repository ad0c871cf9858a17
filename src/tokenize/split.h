// Pre-tokenizers: where a text is divided into words. Each is written by hand for one published regular expression and
// finds the same words; a tokenizer with another expression is refused.
#pragma once

#include <cstdint>
#include <string_view>

namespace lz::tokenize {

enum class Splitter : uint8_t {
  kWhole,   // one word
  kGpt2,    // GPT-2: contractions, letters, numbers, others, each with a space before
  kLlama3,  // Llama 3 and others: letters with any character before, numbers of up to three digits
  kQwen2,   // as kLlama3, numbers of one digit
  kCl100k,  // as kLlama3, but white space at the end of a text is one word
  kO200k,   // case decides about words too
  kTekken,  // as kO200k, without contractions, numbers of one digit
};

// The splitter of a regular expression, compared as text; kWhole if there is none. `tiktoken`: in the syntax of that
// library, in which {1,3}+ is possessive; in that of tokenizers it repeats.
Splitter SplitterOf(std::string_view expression, bool tiktoken);

// The end of the word that begins at `at`, which is before `end`. [at, end) is valid UTF-8.
using WordEnd = const char* (*)(const char* at, const char* end);
WordEnd WordEndOf(Splitter splitter);

}  // namespace lz::tokenize
