// A kernel on every instruction set against its operation's FP64 reference, call by call.
//   const Pair pair = {&kernel, &reference, kContract.tolerance};
//   ExpectAgrees(pair, {&x, nullptr}, out, {Scalar(1.0)});
#pragma once

#include "tests/kernels/call.h"

namespace lz::testing_call {

struct Pair {
  const KernelSpec* kernel;
  const KernelSpec* reference;
  Tolerance tolerance;
};

// Errors relative to 1 + |r|, or to the largest |r| of the row (Compare::kRowMax); kExact: the same values.
inline void ExpectAgrees(const Pair& pair, std::vector<Array*> inputs, Array& out,
                         const std::vector<lz_scalar>& scalars) {
  Array exact(DType::kF64, out.shape()), stored(out.type(), out.shape());
  const bool bits = pair.tolerance.compare == Compare::kExact;
  Array& wanted = bits ? stored : exact;
  inputs.push_back(&wanted);
  ASSERT_EQ(Launch(*pair.reference, inputs, scalars), 0);
  std::vector<double> want = wanted.Values();
  const double bound = bits ? 0 : ToleranceOf(pair.tolerance, out.type());
  inputs.back() = &out;
  ForEachTarget([&] {
    ASSERT_EQ(Launch(*pair.kernel, inputs, scalars), 0);
    EXPECT_TRUE(out.PaddingUntouched());
    if (pair.tolerance.compare != Compare::kRowMax) return ExpectClose(out.Values(), want, bound);
    const std::vector<double> got = out.Values();
    const size_t row = size_t(std::max<int64_t>(1, out.shape().back()));
    for (size_t i = 0; i < got.size(); ++i) {
      double largest = 0;
      for (size_t j = i / row * row; j < i / row * row + row; ++j) {
        if (std::isfinite(want[j])) largest = std::max(largest, std::fabs(want[j]));
      }
      ASSERT_TRUE(std::isnan(want[i]) ? std::isnan(got[i]) : std::fabs(got[i] - want[i]) <= bound * largest)
          << "element " << i << ": got " << got[i] << ", want " << want[i] << ", largest " << largest;
    }
  });
}

}  // namespace lz::testing_call
