// Compares results x with the FP64 reference r, within the contract's tolerance t and nothing else; a kernel's numerics
// class replaces the tolerance if it has one. NaN must match NaN, an infinity the same infinity.
//
//   elementwise  |x - r| <= t (1 + |r|)
//   row max      |x - r| <= t max |r| over the row, or about the smallest normal number. A row may cancel as a whole,
//                so that max |r| does not indicate the size of the summands. Where this bound fails, the backward error
//                counts (Higham, Accuracy and Stability of Numerical Algorithms, 1.5), f(x + dx) - f(x) with
//                |dx| = t |x|, random signs, 8 draws:
//                - fewer than 8 elements cancel by chance: |x - r| may be as large as |f(x + dx) - f(x)| over the row.
//                - 8 and more cancel by factors that they share (hidden units, what a sink leaves to the keys): r's row
//                  may move as far as f(x + dx) does along itself, and along the one further direction in which that
//                  moves it most; the remainder must be within t.
//   rel F        |x - r|_2 <= b |r|_2 over the tensor, or the norm of as many smallest normal numbers; where it fails,
//                the backward error too. A bf16 output is v rounded once, |round(v) - r| <= |round(r) - r| + 2 |v - r|
//                for every element, so the norm of the exact result's rounding errors plus twice the FP32 bound is
//                allowed too: with few elements it may exceed b.
//   overflow     an infinite x is right if a value within the bound of r rounds to it:
//                |r| + bound >= 2^emax (2 - 2^-p). An x that is not finite is right where r is finite if
//                |f(x + dx) - f(x)| / t, about the size of a sum's terms (over the row if it has few elements), is half
//                of FP32's largest number or more
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/contract.h"
#include "verify/case.h"

namespace lz::verify {

// The distance of one output from the reference. `error` and `bound` are in the unit that `measure` names.
struct LZ_VERIFY_API OutputReport {
  bool ok = true;
  std::string output;
  std::string measure;    // "elementwise", "row max", "rel F", "exact", "token", "lse"
  int64_t position = -1;  // flat row-major index of the worst element
  double wanted = 0, got = 0;
  double error = 0, bound = 0;
  std::string Text() const;
};

// Offset in elements of the element with this row-major index.
int64_t ElementOffset(const lz_tensor& t, int64_t flat);

// The bound for elements of this dtype.
double BoundOf(const Tolerance& tolerance, DType dtype);

// The reference's output for inputs whose floats each differ by the fraction `relative`, up or down depending
// on `draw`.
using Nearby = std::function<std::vector<double>(double relative, int draw)>;

// One floating output. `wanted` holds doubles in row-major order.
OutputReport CompareFloats(const Contract& contract, std::string_view numerics, std::string_view output,
                           const lz_tensor& got, const std::vector<double>& wanted, const Nearby& nearby = {});
// Integers and kExact: `wanted` has the dtype and shape of `got`.
OutputReport CompareExact(std::string_view output, const lz_tensor& got, const lz_tensor& wanted);
// Sampled ids: `bound` is a bound request whose outputs the kernel filled.
OutputReport CompareTokens(const Request& bound);

}  // namespace lz::verify
