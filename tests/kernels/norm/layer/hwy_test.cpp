// hwy.norm.layer against FP64 loops: sizes around vector widths, far means, strides, NaN, aliasing.
#include "ops/norm/layer.h"

#include <gtest/gtest.h>

#include "tests/kernels/call.h"

namespace lz::kernels {
extern const KernelFamily kernels_norm_layer_hwy;
}

namespace lz {
namespace {
using namespace testing_call;

const KernelSpec& Kernel() { return kernels::kernels_norm_layer_hwy[0]; }

std::vector<double> Exact(Array& input, Array* w, Array* b, int64_t hidden, double offset) {
  const auto x = input.Values();
  std::vector<double> out(x.size());
  for (size_t row = 0; row < x.size(); row += size_t(hidden)) {
    double sum = 0, squares = 0;
    for (size_t i = row; i < row + size_t(hidden); ++i) sum += x[i];
    const double mean = sum / double(hidden);
    for (size_t i = row; i < row + size_t(hidden); ++i) squares += (x[i] - mean) * (x[i] - mean);
    const double deviation = std::sqrt(squares / double(hidden) + 1e-5);
    for (size_t i = row; i < row + size_t(hidden); ++i) {
      out[i] = (x[i] - mean) / deviation * ((w ? w->Values()[i - row] : 1) + offset) + (b ? b->Values()[i - row] : 0);
    }
  }
  return out;
}

void Check(DType type, Array& x, Array* w, Array* b, Array& out, int64_t hidden, double offset = 0) {
  const auto want = Exact(x, w, b, hidden, offset);
  ASSERT_EQ(Launch(Kernel(), {&x, w, b, &out}, {Scalar(hidden), Scalar(1e-5), Scalar(offset)}), 0);
  ExpectClose(out.Values(), want, ToleranceOf(ops::norm_layer::kContract.tolerance, type));
  EXPECT_TRUE(out.PaddingUntouched());
}

TEST(HwyNormLayer, AgreesWithFp64AtEverySizeAndDType) {
  ForEachTarget([] {
    for (const DType type : kTestTypes) {
      for (const int64_t hidden : {1, 2, 7, 16, 17, 31, 33, 64, 65, 129, 576}) {
        SCOPED_TRACE(std::string(Info(type).name) + " hidden " + std::to_string(hidden));
        Array x(type, {3, hidden}, 2), w(type, {hidden}), b(type, {hidden}), out(type, {3, hidden}, 3);
        x.FillNormal(1);
        w.FillNormal(2);
        b.FillNormal(3);
        Check(type, x, &w, &b, out, hidden);
        Check(type, x, &w, nullptr, out, hidden);
        Check(type, x, nullptr, &b, out, hidden);
        Check(type, x, nullptr, nullptr, out, hidden);
        Check(type, x, &w, &b, out, hidden, 1.0);
        Check(type, x, nullptr, &b, out, hidden, 0.5);
      }
    }
  });
}

TEST(HwyNormLayer, KeepsItsPrecisionFarFromZero) {
  for (const double mean : {1e3, -1e5}) {
    Array x(DType::kF32, {2, 777}), out(DType::kF32, {2, 777});
    x.FillNormal(4, 1, mean);
    Check(DType::kF32, x, nullptr, nullptr, out, 777);
  }
}

TEST(HwyNormLayer, MayWriteOverItsInput) {
  for (const DType type : kTestTypes) {
    for (const int64_t hidden : {5, 64, 100}) {
      Array x(type, {3, hidden}), w(type, {hidden}), b(type, {hidden});
      x.FillNormal(4);
      w.FillNormal(5);
      b.FillNormal(6);
      Check(type, x, &w, &b, x, hidden);
    }
  }
}

TEST(HwyNormLayer, CarriesNaNToItsRowAlone) {
  for (const DType type : kTestTypes) {
    for (const int64_t at : {0, 63, 66}) {
      Array x(type, {3, 67}), out(type, {3, 67});
      x.FillNormal(6);
      x.SetOne(67 + at, NAN);
      Check(type, x, nullptr, nullptr, out, 67);
    }
  }
}

TEST(HwyNormLayer, TakesZeroSizesAndEqualValues) {
  Array none(DType::kF32, {0, 64}), narrow(DType::kF32, {4, 0});
  EXPECT_EQ(Launch(Kernel(), {&none, nullptr, nullptr, &none}, {Scalar(int64_t{64}), Scalar(1e-5), Scalar(0.0)}), 0);
  EXPECT_EQ(Launch(Kernel(), {&narrow, nullptr, nullptr, &narrow}, {Scalar(int64_t{0}), Scalar(1e-5), Scalar(0.0)}), 0);
  Array equal(DType::kF32, {2, 70}), out(DType::kF32, {2, 70});
  equal.Set(std::vector<double>(140, 3.7));
  Check(DType::kF32, equal, nullptr, nullptr, out, 70);
}

}  // namespace
}  // namespace lz
