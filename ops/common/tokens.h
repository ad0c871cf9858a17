// What the operations on texts share: texts and ids as tensors, and the tokenizer as a number.
#pragma once

#include <array>

#include "ops/common/checks.h"

namespace lz::ops::tokens {

enum Scalar { kTokenizer, kCapacity, kSpecials, kBpe, kTokenizers, kTiktoken, kSentencePiece };

constexpr Param Serves(std::string_view name, std::string_view doc) { return KeywordOnly(Bool(name, false, doc)); }

inline Status Canonicalize(BoundArgs& args) {
  if (args.axes[1] < 1) return Invalid("starts", "at least one", "none", "pass the end of the last text too");
  LZ_RETURN_IF_ERROR(Places(args.scalars[kTokenizer], "tokenizer", 0));
  return Places(args.scalars[kCapacity], "capacity", 0);
}

}  // namespace lz::ops::tokens
