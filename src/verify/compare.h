// Results against the FP64 reference, within the contract's tolerance and nothing else; a kernel's numerics class takes
// the tolerance's place where it has one. NaN must meet NaN and an infinity the same infinity.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/contract.h"
#include "verify/case.h"

namespace lz::verify {

// How far one output is from the reference. `error` and `bound` are in the measure that `measure` names.
struct LZ_VERIFY_API OutputReport {
  bool ok = true;
  std::string output;
  std::string measure;    // "elementwise", "row max", "rel F", "exact", "token", "lse"
  int64_t position = -1;  // flat row-major index of the worst element
  double wanted = 0, got = 0;
  double error = 0, bound = 0;
  std::string Text() const;
};

// The bound of elements of this dtype.
double BoundOf(const Tolerance& tolerance, DType dtype);

// One floating output. `wanted` holds doubles in row-major order.
OutputReport CompareFloats(const Contract& contract, std::string_view numerics, std::string_view output,
                           const lz_tensor& got, std::vector<double> wanted);
// Integers and kExact: `wanted` has got's dtype and shape.
OutputReport CompareExact(std::string_view output, const lz_tensor& got, const lz_tensor& wanted);
// Sampled ids: `bound` is a bound request whose outputs the kernel filled.
OutputReport CompareTokens(const Request& bound);

}  // namespace lz::verify
