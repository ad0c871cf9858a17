// Contents of a case's tensors: drawn from a generator that is seeded by the case's text, so that a line has the same
// numbers on every machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "verify/case.h"

namespace lz::verify {

enum class Distribution : uint8_t { kNormal, kUniform, kInt, kDistinct, kProbs, kExplicit };
struct Filling {
  Distribution distribution = Distribution::kNormal;
  double lo = 0, hi = 0;       // kUniform; kInt, kDistinct: hi excluded
  std::vector<double> values;  // kExplicit, in row-major order
  bool nan = false;            // one element becomes NaN
};

// `seed` selects the stream.
void Fill(const Filling& filling, uint64_t seed, OwnedTensor* tensor);
uint64_t HashText(std::string_view text);  // FNV-1a

// Stores a value in any dtype; 8-bit floats by the nearest encoding.
void StoreValue(const lz_tensor& t, int64_t offset, double value);

}  // namespace lz::verify
