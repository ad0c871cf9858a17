// What a tokenizer does, read from the text of a tokenizer.json. What the own tokenizer does not compute exactly is
// refused with a reason.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"
#include "tokenize/split.h"

namespace lz::tokenize {

// A text that is always one token: found before the text is normalized, or after it.
struct AddedToken {
  std::string content;
  int32_t id = -1;
  bool special = false;     // left out of decoded texts on request
  bool normalized = false;  // found in the normalized text
  bool lstrip = false;      // takes the white space before it
  bool rstrip = false;      // and after it
};

// Two tokens that become one; the smallest rank first.
struct Merge {
  int32_t left, right, rank, id;
};

struct Normalizer {
  enum Kind : uint8_t {
    kStays,      // texts whose code points have all of `bits` are not changed; others are refused
    kLowercase,  // A to Z; other cased letters are refused
    kPrepend,    // `text`, unless the text is empty
    kReplace,    // `from` by `text`
  } kind;
  uint16_t bits = 0;
  std::string from, text;
};

struct Decoder {
  enum Kind : uint8_t {
    kBytes,         // the byte-level alphabet
    kReplace,       // `from` by `text` in each token
    kByteFallback,  // <0x41> is that byte
    kFuse,
    kStrip,  // of each token, or after kFuse of the text: up to `start` times `from` at the beginning, `stop` at the
             // end
    kMetaspace,  // as kReplace of `from` by a space, none at the very beginning
  } kind;
  std::string from, text;
  int start = 0, stop = 0;
};

struct Spec {
  std::vector<std::string> tokens;  // UTF-8 by id, added tokens included
  std::vector<bool> present;
  std::vector<bool> in_model;  // tokens that pieces of text become, not added ones alone
  std::vector<Merge> merges;
  std::vector<AddedToken> added;
  std::vector<Normalizer> normalizers;
  // Pre-tokenizer.
  Splitter splitter = Splitter::kWhole;
  bool byte_level = false;
  bool add_prefix_space = false;
  bool single_digits = false;  // each number is a piece before `splitter` divides the others
  bool metaspace = false;      // spaces become `mark`
  bool metaspace_split = false;
  enum Prefix : uint8_t { kNever, kFirst, kAlways } prefix = kNever;
  std::string mark;
  // Model.
  bool byte_fallback = false, fuse_unknown = false, ignore_merges = false;
  int32_t unknown = -1;
  bool decodes_tokens_alone = false;  // an id that is no token is an error
  // Post-processor: ids around a text.
  std::vector<int32_t> before, after;
  bool trim_offsets = false, trim_prefix_space = false;
  std::vector<Decoder> decoders;
};

// "layerzero_ranks": true in the model says that any two tokens merge whose joined text is a token, in the order of
// "ranks", the tokens' ids if that list is absent: the rule of tiktoken and of SentencePiece.
Result<Spec> ReadSpec(std::string_view json);

// The bytes of a token in the byte-level alphabet; false if it has another character.
bool BytesOf(std::string_view token, std::string* bytes);

}  // namespace lz::tokenize
