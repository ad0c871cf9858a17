// Numbers of the input that are not finite, and decide a sum by themselves: taking such a sum again over all of its
// row, as exact sums do, would cost some 15 ns a weight.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/launch.h"

namespace lz::linear {

template <class Bits>
int64_t NextExtreme(const Bits* x, Bits infinite, int64_t i, int64_t k) {
  constexpr int64_t kBlock = 64;
  for (; i + kBlock <= k; i += kBlock) {
    Bits largest = 0;
    for (int64_t j = 0; j < kBlock; ++j) largest = std::max<Bits>(largest, x[i + j] & infinite);
    if (largest == infinite) break;
  }
  while (i < k && (x[i] & infinite) != infinite) ++i;
  return i;
}

// The first element from i on that is infinite or NaN, of a row of f32, f16 or bf16 whose last dim is dense; k: none.
inline int64_t NextExtreme(const lz_tensor& input, int64_t row, int64_t i) {
  const int64_t k = input.shape[input.ndim - 1], at = RowOffset(input, row);
  if (DTypeOf(input) == DType::kF32) return NextExtreme<uint32_t>(Data<const uint32_t>(input) + at, 0x7f800000, i, k);
  const uint16_t infinite = DTypeOf(input) == DType::kF16 ? 0x7c00 : 0x7f80;
  return NextExtreme<uint16_t>(Data<const uint16_t>(input) + at, infinite, i, k);
}

// The sum of product(i) over a row as its definition has it; over its extremes alone where there are some.
template <class Product>
double ExactSum(const lz_tensor& input, int64_t row, Product&& product) {
  const int64_t k = input.shape[input.ndim - 1];
  int64_t i = NextExtreme(input, row, 0);
  double sum = 0;
  if (i == k) {
    for (i = 0; i < k; ++i) sum += product(i);
    return sum;
  }
  for (; i < k && !std::isnan(sum); i = NextExtreme(input, row, i + 1)) sum += product(i);
  return sum;
}

}  // namespace lz::linear
