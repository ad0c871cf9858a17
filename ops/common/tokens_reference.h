// Tokenizer 0, whose ids are bytes, for the references of both operations.
#pragma once

#include <algorithm>

#include "core/view.h"
#include "ops/common/reference.h"

namespace lz::ops::tokens {

// Copies the pieces of `from` that `starts` names to `to`, one after another, and fills the rest with zeros. Tokenizers
// other than 0 are refused: their tables belong to kernels.
inline int32_t CopyPieces(const lz_kernel_args* args, int64_t mask) {
  const View from(args->tensors[0]), starts(args->tensors[1]), to(args->tensors[2]), ends(args->tensors[3]);
  if (args->scalars[0].value.i != 0) return LZ_LAUNCH_REFUSED;
  const int64_t size = from.size(0), capacity = to.size(0);
  int64_t count = 0, start = std::clamp<int64_t>(starts.GetInt({0}), 0, size);
  for (int64_t i = 0; i < ends.size(0); ++i) {
    const int64_t end = std::max(start, std::clamp<int64_t>(starts.GetInt({i + 1}), 0, size));
    for (; start < end; ++start, ++count) {
      if (count < capacity) to.SetInt({count}, from.GetInt({start}) & mask);
    }
    ends.SetInt({i}, count);
  }
  for (; count < capacity; ++count) to.SetInt({count}, 0);
  return LZ_LAUNCH_DONE;
}

}  // namespace lz::ops::tokens
