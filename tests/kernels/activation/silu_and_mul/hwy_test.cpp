// hwy.activation.silu_and_mul against FP64: sizes around vector widths, dense and strided rows, aliasing, NaN.
#include "ops/activation/silu_and_mul.h"

#include <gtest/gtest.h>

#include "tests/kernels/activation/gated_testing.h"

namespace lz::kernels {
extern const KernelFamily kernels_activation_silu_and_mul_hwy;
}

namespace lz {
namespace {
using namespace testing_call;

const KernelSpec& Kernel() { return kernels::kernels_activation_silu_and_mul_hwy[0]; }

void Check(DType type, Array& x, Array& out, int64_t n) {
  const auto in = x.Values();
  std::vector<double> want;
  for (size_t row = 0; row < in.size(); row += size_t(2 * n)) {
    for (size_t i = row; i < row + size_t(n); ++i) want.push_back(in[i] / (1 + std::exp(-in[i])) * in[i + size_t(n)]);
  }
  ASSERT_EQ(Launch(Kernel(), {&x, &out}, {}), 0);
  ExpectClose(out.Values(), want, ToleranceOf(ops::activation_silu_and_mul::kContract.tolerance, type));
  EXPECT_TRUE(out.PaddingUntouched());
}

TEST(HwySiluAndMul, AgreesWithFp64AtEverySizeAndDType) {
  ForEachTarget([] {
    for (const DType type : kTestTypes) {
      for (const int64_t n : {1, 7, 16, 17, 33, 64, 129, 5000}) {
        for (const int64_t rows : {1, 3}) {
          SCOPED_TRACE(std::string(Info(type).name) + " n " + std::to_string(n));
          Array x(type, {rows, 2 * n}, 3), out(type, {rows, n}, 5);
          x.FillNormal(1, 4);
          Check(type, x, out, n);
        }
      }
    }
  });
}

TEST(HwySiluAndMul, CarriesNaNToItsElementAlone) {
  for (const DType type : kTestTypes) {
    Array x(type, {2, 66}), out(type, {2, 33});
    x.FillNormal(2);
    x.SetOne(0, NAN);
    x.SetOne(33 + 32, NAN);
    x.SetOne(66 + 32, INFINITY);
    Check(type, x, out, 33);
  }
}

TEST(HwySiluAndMul, TakesZeroSizes) {
  Array none(DType::kF32, {0, 64}), none_out(DType::kF32, {0, 32}), narrow(DType::kF32, {4, 0});
  EXPECT_EQ(Launch(Kernel(), {&none, &none_out}, {}), 0);
  EXPECT_EQ(Launch(Kernel(), {&narrow, &narrow}, {}), 0);
}

}  // namespace
}  // namespace lz
