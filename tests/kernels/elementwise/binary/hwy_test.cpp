// hwy.elementwise.binary against FP64: functions, broadcasts, scale, aliasing, NaN.
#include "ops/elementwise/binary.h"

#include <gtest/gtest.h>

#include "tests/kernels/against_reference.h"

namespace lz::kernels {
extern const KernelFamily kernels_elementwise_binary_hwy, ops_elementwise_binary_ref;
}  // namespace lz::kernels

namespace lz {
namespace {
using namespace testing_call;

const Pair kPair = {&kernels::kernels_elementwise_binary_hwy[0], &kernels::ops_elementwise_binary_ref[0],
                    ops::elementwise_binary::kContract.tolerance};

TEST(HwyBinary, AgreesWithFp64ForEveryFunctionAndBroadcast) {
  const std::vector<std::vector<int64_t>> shapes = {{2, 3, 33}, {33}, {3, 33}, {2, 1, 33}, {2, 3, 1}, {1}, {}};
  for (const DType type : kTestTypes) {
    for (int64_t function = ops::elementwise_binary::kAdd; function <= ops::elementwise_binary::kMinimum; ++function) {
      for (const std::vector<int64_t>& shape : shapes) {
        for (const double scale : {1.0, -0.25}) {
          SCOPED_TRACE(std::string(Info(type).name) + " function " + std::to_string(function));
          Array x(type, {2, 3, 33}, 1), y(type, shape), out(type, {2, 3, 33}, 2);
          x.FillNormal(1);
          y.FillNormal(2, 0.1, 2);
          x.SetOne(40, NAN);
          if (shape.size() == 3) y.SetOne(3, NAN);
          ExpectAgrees(kPair, {&x, &y}, out, {Scalar(function), Scalar(scale)});
        }
      }
    }
  }
}

TEST(HwyBinary, TakesManyElementsInPlaceAndColumns) {
  Array x(DType::kF32, {5000}), y(DType::kF32, {5000}), column(DType::kF32, {7, 1}), other(DType::kF32, {7, 1});
  x.FillNormal(1);
  y.FillNormal(2);
  const std::vector<double> a = x.Values(), b = y.Values();
  std::vector<double> want;
  for (size_t i = 0; i < a.size(); ++i) want.push_back(a[i] + b[i]);
  ASSERT_EQ(Launch(*kPair.kernel, {&x, &y, &x}, {Scalar(int64_t{ops::elementwise_binary::kAdd}), Scalar(1.0)}), 0);
  ExpectClose(x.Values(), want, 1e-6);
  column.FillNormal(3);
  other.FillNormal(4);
  Array out(DType::kF32, {7, 1});
  ExpectAgrees(kPair, {&column, &other}, out, {Scalar(int64_t{ops::elementwise_binary::kMul}), Scalar(1.0)});
}

}  // namespace
}  // namespace lz
