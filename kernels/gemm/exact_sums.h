// Inputs that are not finite and determine a sum on their own: computing such a sum again over its whole row, as exact
// sums do, would take about 15 ns per weight.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/view.h"
#include "kernels/launch.h"

namespace lz::gemm {

template <class Bits>
int64_t NextNonFinite(const Bits* x, Bits infinite, int64_t i, int64_t k) {
  constexpr int64_t kBlock = 64;
  for (; i + kBlock <= k; i += kBlock) {
    Bits largest = 0;
    for (int64_t j = 0; j < kBlock; ++j) largest = std::max<Bits>(largest, x[i + j] & infinite);
    if (largest == infinite) break;
  }
  while (i < k && (x[i] & infinite) != infinite) ++i;
  return i;
}

// The first element from i on that is infinite or NaN, in a row of f32, f16 or bf16 whose last dim is dense; k: none.
inline int64_t NextNonFinite(const lz_tensor& input, int64_t row, int64_t i) {
  const int64_t k = input.shape[input.ndim - 1], at = RowOffset(input, row);
  if (DTypeOf(input) == DType::kF32) return NextNonFinite<uint32_t>(Data<const uint32_t>(input) + at, 0x7f800000, i, k);
  const uint16_t infinite = DTypeOf(input) == DType::kF16 ? 0x7c00 : 0x7f80;
  return NextNonFinite<uint16_t>(Data<const uint16_t>(input) + at, infinite, i, k);
}

// The sum of a row times weight(i) as in its definition, where FP32 found `found`. For a row with non-finite values it
// is the sum of those, unless a weight elsewhere is not finite either: then FP32 found no infinity. One weight in
// `step` is enough to check whether all are finite.
template <class Weight>
double ExactSum(const lz_tensor& input, int64_t row, float found, int64_t step, Weight&& weight) {
  const View x(input);
  const int64_t k = input.shape[input.ndim - 1];
  const auto whole = [&] {
    double sum = 0;
    for (int64_t i = 0; i < k; ++i) sum += x.GetRow(row, i) * weight(i);
    return sum;
  };
  int64_t i = NextNonFinite(input, row, 0);
  if (i == k) return whole();
  double sum = 0;
  for (; i < k && !std::isnan(sum); i = NextNonFinite(input, row, i + 1)) sum += x.GetRow(row, i) * weight(i);
  if (std::isnan(sum) || sum == double(found)) return sum;
  for (i = 0; i < k; i += step) {
    if (!std::isfinite(weight(i))) return whole();
  }
  return sum;
}

}  // namespace lz::gemm
