// hwy.norm.layer.residual against FP64 loops: the sum to the bit, the norm of the rounded sum, aliasing, NaN.
#include "ops/norm/layer_residual.h"

#include <gtest/gtest.h>

#include "tests/kernels/call.h"

namespace lz::kernels {
extern const KernelFamily kernels_norm_layer_residual_hwy;
}

namespace lz {
namespace {
using namespace testing_call;

const KernelSpec& Kernel() { return kernels::kernels_norm_layer_residual_hwy[0]; }

struct Wanted {
  std::vector<double> out, sum;
};
Wanted Exact(DType type, Array& x, Array& r, Array* w, Array* bias, int64_t hidden) {
  const auto a = x.Values(), b = r.Values();
  Array rounded(type, {int64_t(a.size())});
  std::vector<double> sums(a.size());
  for (size_t i = 0; i < a.size(); ++i) sums[i] = a[i] + b[i];
  rounded.Set(sums);
  Wanted wanted{.out = std::vector<double>(a.size()), .sum = rounded.Values()};
  for (size_t row = 0; row < a.size(); row += size_t(hidden)) {
    double total = 0, squares = 0;
    for (size_t i = row; i < row + size_t(hidden); ++i) total += wanted.sum[i];
    const double mean = total / double(hidden);
    for (size_t i = row; i < row + size_t(hidden); ++i) squares += (wanted.sum[i] - mean) * (wanted.sum[i] - mean);
    const double deviation = std::sqrt(squares / double(hidden) + 1e-5);
    for (size_t i = row; i < row + size_t(hidden); ++i) {
      wanted.out[i] =
          (wanted.sum[i] - mean) / deviation * (w ? w->Values()[i - row] : 1) + (bias ? bias->Values()[i - row] : 0);
    }
  }
  return wanted;
}

void Check(DType type, Array& x, Array& r, Array* w, Array* bias, Array& out, Array& sum, int64_t hidden) {
  const Wanted want = Exact(type, x, r, w, bias, hidden);
  ASSERT_EQ(Launch(Kernel(), {&x, &r, w, bias, &out, &sum}, {Scalar(hidden), Scalar(1e-5), Scalar(0.0)}), 0);
  ExpectClose(sum.Values(), want.sum, 0);
  ExpectClose(out.Values(), want.out, ToleranceOf(ops::norm_layer_residual::kContract.tolerance, type));
  EXPECT_TRUE(out.PaddingUntouched());
  EXPECT_TRUE(sum.PaddingUntouched());
}

TEST(HwyNormLayerResidual, AgreesWithFp64AtEverySizeAndDType) {
  ForEachTarget([] {
    for (const DType type : kTestTypes) {
      for (const int64_t hidden : {1, 7, 16, 17, 31, 32, 33, 65, 129, 576}) {
        SCOPED_TRACE(std::string(Info(type).name) + " hidden " + std::to_string(hidden));
        Array x(type, {3, hidden}, 1), r(type, {3, hidden}, 5), w(type, {hidden}), b(type, {hidden});
        Array out(type, {3, hidden}, 3), sum(type, {3, hidden}, 2);
        x.FillNormal(1);
        r.FillNormal(2, 8);
        w.FillNormal(3);
        b.FillNormal(4);
        Check(type, x, r, &w, &b, out, sum, hidden);
        Check(type, x, r, nullptr, nullptr, out, sum, hidden);
      }
    }
  });
}

TEST(HwyNormLayerResidual, MayWriteOverItsInputs) {
  for (const DType type : kTestTypes) {
    for (const int64_t hidden : {5, 64, 100}) {
      Array x(type, {3, hidden}), r(type, {3, hidden}), w(type, {hidden});
      x.FillNormal(4);
      r.FillNormal(5);
      w.FillNormal(6);
      Check(type, x, r, &w, nullptr, x, r, hidden);
    }
  }
}

TEST(HwyNormLayerResidual, CarriesNaNAndInfinity) {
  for (const DType type : kTestTypes) {
    for (const int64_t at : {0, 66}) {
      Array x(type, {3, 67}), r(type, {3, 67}), out(type, {3, 67}), sum(type, {3, 67});
      x.FillNormal(6);
      r.FillNormal(7);
      x.SetOne(at, NAN);
      r.SetOne(67 + at, NAN);
      r.SetOne(134 + at, INFINITY);
      Check(type, x, r, nullptr, nullptr, out, sum, 67);
    }
  }
}

TEST(HwyNormLayerResidual, TakesZeroSizes) {
  Array none(DType::kBF16, {0, 64}), narrow(DType::kBF16, {4, 0});
  EXPECT_EQ(Launch(Kernel(), {&none, &none, nullptr, nullptr, &none, &none},
                   {Scalar(int64_t{64}), Scalar(1e-5), Scalar(0.0)}),
            0);
  EXPECT_EQ(Launch(Kernel(), {&narrow, &narrow, nullptr, nullptr, &narrow, &narrow},
                   {Scalar(int64_t{0}), Scalar(1e-5), Scalar(0.0)}),
            0);
}

}  // namespace
}  // namespace lz
