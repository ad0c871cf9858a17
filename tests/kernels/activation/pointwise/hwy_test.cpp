// hwy.activation.pointwise against FP64: every function, sizes around vector widths, strides, NaN, infinities.
#include "ops/activation/pointwise.h"

#include <gtest/gtest.h>

#include "tests/kernels/against_reference.h"

namespace lz::kernels {
extern const KernelFamily kernels_activation_pointwise_hwy, ops_activation_pointwise_ref;
}  // namespace lz::kernels

namespace lz {
namespace {
using namespace testing_call;

const Pair kPair = {&kernels::kernels_activation_pointwise_hwy[0], &kernels::ops_activation_pointwise_ref[0],
                    ops::activation_pointwise::kContract.tolerance};

TEST(HwyPointwise, AgreesWithFp64ForEveryFunction) {
  for (const DType type : kTestTypes) {
    for (int64_t function = 0; function <= ops::activation::kIdentity; ++function) {
      for (const int64_t n : {1, 7, 33, 129, 5000}) {
        SCOPED_TRACE(std::string(Info(type).name) + " function " + std::to_string(function) + " n " +
                     std::to_string(n));
        Array x(type, {3, n}, n % 2 ? 3 : 0), out(type, {3, n}, n % 2 ? 5 : 0);
        x.FillNormal(1, 4);
        if (n == 33) x.SetOne(5, NAN);
        if (n == 129) x.SetOne(7, INFINITY);
        ExpectAgrees(kPair, {&x}, out, {Scalar(function)});
      }
    }
  }
}

TEST(HwyPointwise, TakesZeroSizesAndNoAxes) {
  Array none(DType::kF32, {0, 64}), narrow(DType::kF32, {4, 0}), one(DType::kF32, {}), out(DType::kF32, {});
  EXPECT_EQ(Launch(*kPair.kernel, {&none, &none}, {Scalar(int64_t{0})}), 0);
  EXPECT_EQ(Launch(*kPair.kernel, {&narrow, &narrow}, {Scalar(int64_t{0})}), 0);
  one.Set({2.0});
  EXPECT_EQ(Launch(*kPair.kernel, {&one, &out}, {Scalar(int64_t{ops::activation::kRelu2})}), 0);
  EXPECT_EQ(out.Values(), std::vector<double>{4.0});
}

}  // namespace
}  // namespace lz
