// The tokenizers of the process by number, for kernels: a call's tensors and scalars cannot hold one.
#pragma once

#include <memory>

#include "tokenize/tokenizer.h"

namespace lz::tokenize {

// Keeps a tokenizer for the life of the process and returns its number, from 1 on. nullptr: only libraries serve it.
LZ_OWN int64_t NumberOf(std::shared_ptr<const Tokenizer> tokenizer);
// The tokenizer of a number; nullptr if it has none.
LZ_OWN const Tokenizer* Numbered(int64_t number);

}  // namespace lz::tokenize
