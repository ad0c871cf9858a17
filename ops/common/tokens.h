// What the operations on texts share: texts and ids as tensors, and the tokenizer as a number.
#pragma once

#include <array>

#include "ops/common/checks.h"

namespace lz::ops::tokens {

// Of both operations; the last two are encode's alone.
enum Scalar {
  kTokenizer,
  kCapacity,
  kSpecials,
  kBpe,
  kTokenizers,
  kTiktoken,
  kSentencePiece,
  kReturnOffsets,
  kBpeOffsets
};

// The parameters of an operation: texts or ids, what to do with special tokens, who serves the tokenizer, `more`.
template <size_t N>
constexpr auto Params(const Param& values, const Param& starts, const Param& specials,
                      const std::array<Param, N>& more) {
  std::array<Param, N + 9> params = {
      values,
      starts,
      RequiredInt("tokenizer", "number of a registered tokenizer in this process; 0: each byte is its own id"),
      RequiredInt("capacity", "number of elements that the result has room for"),
      KeywordOnly(specials),
      KeywordOnly(Bool("bpe", false, "LayerZero's own tokenizer has this tokenizer's results")),
      KeywordOnly(Bool("tokenizers", false, "so has the library tokenizers")),
      KeywordOnly(Bool("tiktoken", false, "so has tiktoken")),
      KeywordOnly(Bool("sentencepiece", false, "so has SentencePiece")),
  };
  for (size_t i = 0; i < N; ++i) params[9 + i] = more[i];
  return params;
}

inline Status Canonicalize(BoundArgs& args) {
  if (args.axes[1] < 1) return Invalid("starts", "at least one", "none", "pass the end of the last text too");
  LZ_RETURN_IF_ERROR(Places(args.scalars[kTokenizer], "tokenizer", 0));
  return Places(args.scalars[kCapacity], "capacity", 0);
}

}  // namespace lz::ops::tokens
