// Changed texts for the parsers' fuzz tests: bytes, pieces of the same and of other texts, words that the parsers know,
// nesting, and numbers at the ends of their ranges.
#pragma once

#include <array>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace lz::fuzz {

class Mutator {
 public:
  Mutator(std::vector<std::string> seeds, uint64_t seed) : pool_(std::move(seeds)), random_(seed) {
    for (const std::string& text : pool_) AddWords(text);
  }

  std::string Next() {
    std::string text = pool_[random_() % pool_.size()];
    for (uint64_t edits = 1 + random_() % 4; edits > 0; --edits) Edit(&text);
    if (text.size() > kLongest) text.resize(kLongest);
    return text;
  }
  // A text that the parser accepted: further ones are made of it too.
  void Keep(const std::string& text) {
    if (pool_.size() < kPool) {
      pool_.push_back(text);
    } else {
      pool_[random_() % pool_.size()] = text;
    }
  }

 private:
  static constexpr size_t kPool = 512, kLongest = 8192, kWords = 4096;
  static constexpr auto kTokens = std::to_array<std::string_view>({"{",
                                                                   "}",
                                                                   "[",
                                                                   "]",
                                                                   ":",
                                                                   ",",
                                                                   "\"",
                                                                   "'",
                                                                   "\\",
                                                                   "- ",
                                                                   "? ",
                                                                   "&a ",
                                                                   "*a",
                                                                   "<<: *a",
                                                                   "!!int ",
                                                                   "|",
                                                                   ">",
                                                                   "#",
                                                                   "\n",
                                                                   "\t",
                                                                   "---\n",
                                                                   "null",
                                                                   "~",
                                                                   "true",
                                                                   "1e999",
                                                                   "-0",
                                                                   "0x1F",
                                                                   "9223372036854775807",
                                                                   "-9223372036854775808",
                                                                   "18446744073709551616",
                                                                   "1.5",
                                                                   "\\ud800",
                                                                   "\xff",
                                                                   "\xc3\xa9",
                                                                   "{}",
                                                                   "[]",
                                                                   "\"\"",
                                                                   "*",
                                                                   "..",
                                                                   "/"});

  size_t At(const std::string& text) { return text.empty() ? 0 : random_() % (text.size() + 1); }
  void AddWords(const std::string& text) {
    std::string word;
    for (char c : text) {
      const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
      if (letter || c == '_' || c == '.') {
        word += c;
      } else if (!word.empty() && words_.size() < kWords) {
        words_.push_back(std::exchange(word, {}));
      }
    }
    if (words_.empty()) words_.emplace_back("a");
  }

  void Edit(std::string* text) {
    const size_t at = At(*text);
    switch (random_() % 9) {
      case 0:
        if (at < text->size()) (*text)[at] = char(random_() & 255);
        break;
      case 1: text->erase(at, 1 + random_() % 32); break;
      case 2: text->insert(at, kTokens[random_() % kTokens.size()]); break;
      case 3: text->insert(at, words_[random_() % words_.size()]); break;
      case 4: text->insert(at, text->substr(At(*text), random_() % 64)); break;
      case 5: {
        const std::string& other = pool_[random_() % pool_.size()];
        text->replace(at, random_() % 64, other.substr(At(other), random_() % 256));
        break;
      }
      case 6: text->resize(at); break;
      case 7: {
        const char open = random_() % 2 ? '[' : '{';
        text->insert(at, std::string(1 + random_() % 64, open));
        break;
      }
      default: {  // another word in the place of one
        const std::string& word = words_[random_() % words_.size()];
        if (const size_t found = text->find(word, at); found != text->npos) {
          text->replace(found, word.size(), words_[random_() % words_.size()]);
        }
      }
    }
  }

  std::vector<std::string> pool_, words_;
  std::mt19937_64 random_;
};

}  // namespace lz::fuzz
