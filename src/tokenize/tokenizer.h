// The own tokenizer: byte pair encoding, byte-level or as SentencePiece's, with the ids of the tokenizers library.
//   auto made = Tokenizer::Make(text of a tokenizer.json);
//   std::vector<int32_t> ids;
//   if (made.ok() && (*made)->Encode("Hello", true, &ids)) ...
// Immutable after it is made: any number of threads may use one.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/export.h"
#include "tokenize/spec.h"
#include "tokenize/tables.h"
#include "tokenize/word_cache.h"

namespace lz::tokenize {

// Characters of the text that a token comes from.
struct Span {
  int32_t start, end;
};

class LZ_OWN Tokenizer {
 public:
  static Result<std::shared_ptr<const Tokenizer>> Make(std::string_view json);

  // Appends the ids of a text; with `spans` also where each comes from, which has_offsets() says is known. False, with
  // nothing appended, for a text that is not UTF-8 or that a normalizer may change in a way that is not computed here.
  bool Encode(std::string_view text, bool specials, std::vector<int32_t>* ids,
              std::vector<Span>* spans = nullptr) const;
  // Whether Encode has the ids of a text of UTF-8: of one that no normalizer may change in a way that is not computed.
  bool Serves(std::string_view text) const;
  // Appends the text of ids, which is UTF-8: U+FFFD for bytes that are no character. Left out are ids that are no
  // tokens, and with `skip_specials` special tokens. False, with nothing appended, for an id that the library refuses.
  bool Decode(std::span<const int64_t> ids, bool skip_specials, std::string* text) const;

  size_t num_ids() const { return spec_.tokens.size(); }
  bool has_offsets() const { return has_offsets_; }
  bool has_decoder() const { return !spec_.decoders.empty(); }

 private:
  struct Job;  // one call of Encode
  struct Match {
    const AddedToken* token;
    size_t start, end;
  };
  explicit Tokenizer(Spec spec);

  Status Prepare();
  void PrepareBytes();
  Status PrepareCharacters();
  void PrepareWords();
  void PrepareAdded();
  void PrepareTokenTexts();

  bool FindAdded(std::string_view text, size_t from, bool normalized, Match* match) const;
  template <class OnToken, class OnText>
  bool SplitAdded(std::string_view text, bool normalized, OnToken&& on_token, OnText&& on_text) const;
  bool Normalize(std::string_view* text, std::string* changed) const;
  bool EncodeText(Job& job, std::string_view text) const;
  void EncodePiece(Job& job, std::string_view text, bool first) const;
  void EncodeWords(Job& job, std::string_view text) const;
  void EncodeMarked(Job& job, std::string_view text) const;
  void EncodeWord(Job& job, std::string_view word) const;
  void Symbols(std::string_view word, std::vector<int32_t>* symbols) const;
  void AddAdded(Job& job, std::string_view text, const Match& match) const;

  Spec spec_;
  uint64_t serial_;  // of this tokenizer in the process
  PairTable pairs_;
  WordTable words_;                 // words that are one token
  WordTable characters_;            // single characters, where pieces are no bytes
  std::vector<std::string> texts_;  // by id: the bytes that a piece of text has, empty if no text becomes it
  std::array<int32_t, 256> bytes_;  // byte level: of a byte; else of the token <0xXX>
  WordEnd word_end_;
  bool divides_at_mark_ = false;  // no token has the mark after another character: words can be found by it
  bool has_offsets_ = false;
  struct AddedIndex {
    std::array<std::vector<uint32_t>, 256> by_first;  // of spec_.added, longest first
    bool any = false;
  };
  AddedIndex raw_, normalized_;
  std::vector<uint8_t> is_special_;
};

}  // namespace lz::tokenize
