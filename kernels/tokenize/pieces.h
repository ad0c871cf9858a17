// What both kernels share: texts one after another in one tensor, and results of a length that is known at the end.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "core/kernel.h"
#include "kernels/launch.h"
#include "kernels/spec.h"
#include "tokenize/numbers.h"

namespace lz::tokens {

inline constexpr Constraint kServedByOwn{
    .field = "bpe", .rel = Rel::kEq, .operand = 1, .code = ReasonCode::kTokenizerIdMismatch};

// Calls run(first, end) for each piece of a tensor of `size` elements; stops and returns false where it does.
template <class Run>
bool ForEachPiece(const lz_tensor& starts, int64_t size, Run&& run) {
  const auto start = [&](int64_t i) {
    const bool wide = DTypeOf(starts) == DType::kI64;
    return std::clamp<int64_t>(wide ? Data<int64_t>(starts)[i] : Data<int32_t>(starts)[i], 0, size);
  };
  int64_t first = start(0);
  for (int64_t i = 1; i < starts.shape[0]; ++i) {
    const int64_t end = std::max(first, start(i));
    if (!run(first, end)) return false;
    first = end;
  }
  return true;
}

// Writes as many rows as the tensor has room for, then zeros.
template <class Rows>
void WriteRows(const Rows& rows, const lz_tensor& t) {
  const size_t bytes = sizeof(rows[0]), room = size_t(t.shape[0]), count = std::min(rows.size(), room);
  char* const to = Data<char>(t);
  if (count > 0) std::memcpy(to, rows.data(), count * bytes);
  if (room > count) std::memset(to + count * bytes, 0, (room - count) * bytes);
}

}  // namespace lz::tokens
