// hwy.elementwise.cast bit for bit: every pair of dtypes, ties, subnormals, overflow, NaN, strides.
#include "ops/elementwise/cast.h"

#include <gtest/gtest.h>

#include "tests/kernels/against_reference.h"

namespace lz::kernels {
extern const KernelFamily kernels_elementwise_cast_hwy, ops_elementwise_cast_ref;
}  // namespace lz::kernels

namespace lz {
namespace {
using namespace testing_call;

const Pair kPair = {&kernels::kernels_elementwise_cast_hwy[0], &kernels::ops_elementwise_cast_ref[0],
                    ops::elementwise_cast::kContract.tolerance};

TEST(HwyCast, IsExactForEveryPair) {
  std::vector<double> special = {0.0,     -0.0,   1.00390625, 1.01171875, 1.00048828125, 1.00146484375, 65519,
                                 65520,   -65520, 1e-40,      -1e-40,     6e-8,          2.9e-8,        3.4e38,
                                 -3.4e38, 1e-45,  NAN,        INFINITY,   -INFINITY};
  const DType targets[] = {DType::kF32, DType::kF64, DType::kF16, DType::kBF16};
  for (const DType from : kTestTypes) {
    for (int64_t to = 0; to < 4; ++to) {
      SCOPED_TRACE(std::string(Info(from).name) + " to " + std::string(Info(targets[to]).name));
      Array few(from, {1, int64_t(special.size())}), few_out(targets[to], few.shape());
      few.Set(special);
      ExpectAgrees(kPair, {&few}, few_out, {Scalar(to)});
      Array many(from, {3, 1500}, 1), many_out(targets[to], {3, 1500}, 3);
      many.FillNormal(1, 1e3);
      ExpectAgrees(kPair, {&many}, many_out, {Scalar(to)});
    }
  }
}

}  // namespace
}  // namespace lz
