// Ids to a text.
#include "tokenize/spec_internal.h"
#include "tokenize/tokenizer.h"
#include "tokenize/unicode.h"

namespace lz::tokenize {
namespace {

using Tokens = std::vector<std::string>;

void Replace(Tokens* tokens, std::string_view from, std::string_view to) {
  for (std::string& token : *tokens) {
    for (size_t at = token.find(from); at != token.npos; at = token.find(from, at + to.size())) {
      token.replace(at, from.size(), to);
    }
  }
}

// The byte of <0x41>, or -1.
int ByteOf(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  int value = 0;
  for (char c : token.substr(3, 2)) {
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                             : -1;
    if (digit < 0) return -1;
    value = 16 * value + digit;
  }
  return value;
}

// Runs of byte tokens become their text, or a replacement character for each byte if they are no UTF-8.
void FallBack(Tokens* tokens) {
  Tokens result;
  std::string run;
  const auto end_run = [&] {
    if (run.empty()) return;
    if (IsUtf8(run)) {
      result.push_back(std::move(run));
    } else {
      for (size_t i = 0; i < run.size(); ++i) result.emplace_back("\xEF\xBF\xBD");
    }
    run.clear();
  };
  for (std::string& token : *tokens) {
    const int byte = ByteOf(token);
    if (byte >= 0) {
      run.push_back(char(byte));
      continue;
    }
    end_run();
    result.push_back(std::move(token));
  }
  end_run();
  *tokens = std::move(result);
}

void Strip(Tokens* tokens, const Decoder& step) {
  const std::string_view one = step.from;
  for (std::string& token : *tokens) {
    size_t begin = 0, end = token.size();
    for (int i = 0; i < step.start && token.compare(begin, one.size(), one) == 0; ++i) begin += one.size();
    for (int i = 0; i < step.stop && end >= begin + one.size(); ++i) {
      if (token.compare(end - one.size(), one.size(), one) != 0) break;
      end -= one.size();
    }
    token = token.substr(begin, end - begin);
  }
}

void Bytes(Tokens* tokens) {
  std::string all, bytes, text;
  for (const std::string& token : *tokens) all += BytesOf(token, &bytes) ? bytes : token;
  AppendAsUtf8(all, &text);
  *tokens = {std::move(text)};
}

void Metaspace(Tokens* tokens, const Decoder& step) {
  for (size_t i = 0; i < tokens->size(); ++i) {
    std::string& token = (*tokens)[i];
    if (i == 0 && step.start > 0) {
      // Marks of the first token have no text.
      std::string kept;
      for (size_t at = 0; at < token.size();) {
        const bool mark = token.compare(at, step.from.size(), step.from) == 0;
        const size_t size = mark ? step.from.size() : 1;
        if (!mark) kept.append(token, at, size);
        at += size;
      }
      token = std::move(kept);
      continue;
    }
  }
  Replace(tokens, step.from, " ");
}

}  // namespace

bool Tokenizer::Decode(std::span<const int64_t> ids, bool skip_specials, std::string* text) const {
  Tokens tokens;
  tokens.reserve(ids.size());
  for (int64_t id : ids) {
    if (id < 0 || id > UINT32_MAX) return false;  // no library takes it
    const auto at = size_t(id);
    const bool is_token = at < spec_.tokens.size() && spec_.present[at];
    if (!is_token && spec_.decodes_tokens_alone) return false;
    if (is_token && !(skip_specials && is_special_[at])) tokens.push_back(spec_.tokens[at]);
  }
  for (const Decoder& step : spec_.decoders) {
    switch (step.kind) {
      case Decoder::kBytes: Bytes(&tokens); break;
      case Decoder::kReplace: Replace(&tokens, step.from, step.text); break;
      case Decoder::kByteFallback: FallBack(&tokens); break;
      case Decoder::kStrip: Strip(&tokens, step); break;
      case Decoder::kMetaspace: Metaspace(&tokens, step); break;
      case Decoder::kFuse: {
        std::string whole;
        for (const std::string& token : tokens) whole += token;
        tokens = {std::move(whole)};
        break;
      }
    }
  }
  for (const std::string& token : tokens) text->append(token);
  return true;
}

}  // namespace lz::tokenize
