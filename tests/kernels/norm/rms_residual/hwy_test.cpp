// hwy.norm.rms.residual against FP64 loops: the sum to the bit, the norm of the rounded sum, aliasing, NaN.
#include "ops/norm/rms_residual.h"

#include <gtest/gtest.h>

#include "tests/kernels/call.h"

namespace lz::kernels {
extern const KernelFamily kernels_norm_rms_residual_hwy;
}

namespace lz {
namespace {
using namespace testing_call;

const KernelSpec& Kernel() { return kernels::kernels_norm_rms_residual_hwy[0]; }

struct Wanted {
  std::vector<double> out, sum;
};
Wanted Exact(DType type, Array& x, Array& r, Array* w, int64_t hidden, double offset) {
  const auto a = x.Values(), b = r.Values();
  Array rounded(type, {int64_t(a.size())});
  std::vector<double> sums(a.size());
  for (size_t i = 0; i < a.size(); ++i) sums[i] = a[i] + b[i];
  rounded.Set(sums);
  Wanted wanted{.out = std::vector<double>(a.size()), .sum = rounded.Values()};
  for (size_t row = 0; row < a.size(); row += size_t(hidden)) {
    double squares = 0;
    for (size_t i = row; i < row + size_t(hidden); ++i) squares += wanted.sum[i] * wanted.sum[i];
    const double rms = std::sqrt(squares / double(hidden) + 1e-6);
    for (size_t i = row; i < row + size_t(hidden); ++i) {
      wanted.out[i] = wanted.sum[i] / rms * ((w ? w->Values()[i - row] : 1) + offset);
    }
  }
  return wanted;
}

void Check(DType type, Array& x, Array& r, Array* w, Array& out, Array& sum, int64_t hidden, double offset = 0) {
  const Wanted want = Exact(type, x, r, w, hidden, offset);
  ASSERT_EQ(Launch(Kernel(), {&x, &r, w, &out, &sum}, {Scalar(1e-6), Scalar(offset)}), 0);
  ExpectClose(sum.Values(), want.sum, 0);
  ExpectClose(out.Values(), want.out, ToleranceOf(ops::norm_rms_residual::kContract.tolerance, type));
  EXPECT_TRUE(out.PaddingUntouched());
  EXPECT_TRUE(sum.PaddingUntouched());
}

TEST(HwyNormRmsResidual, AgreesWithFp64AtEverySizeAndDType) {
  ForEachTarget([] {
    for (const DType type : kTestTypes) {
      for (const int64_t hidden : {1, 7, 16, 17, 31, 32, 33, 65, 129, 576}) {
        SCOPED_TRACE(std::string(Info(type).name) + " hidden " + std::to_string(hidden));
        Array x(type, {3, hidden}, 1), r(type, {3, hidden}, 5), w(type, {hidden});
        Array out(type, {3, hidden}, 3), sum(type, {3, hidden}, 2);
        x.FillNormal(1);
        r.FillNormal(2, 8);
        w.FillNormal(3);
        Check(type, x, r, &w, out, sum, hidden);
        Check(type, x, r, nullptr, out, sum, hidden, 1.0);
      }
    }
  });
}

TEST(HwyNormRmsResidual, MayWriteOverItsInputs) {
  for (const DType type : kTestTypes) {
    for (const int64_t hidden : {5, 64, 100}) {
      Array x(type, {3, hidden}), r(type, {3, hidden}), w(type, {hidden});
      x.FillNormal(4);
      r.FillNormal(5);
      w.FillNormal(6);
      Check(type, x, r, &w, x, r, hidden);
    }
  }
}

TEST(HwyNormRmsResidual, CarriesNaNAndInfinity) {
  for (const DType type : kTestTypes) {
    for (const int64_t at : {0, 66}) {
      Array x(type, {3, 67}), r(type, {3, 67}), out(type, {3, 67}), sum(type, {3, 67});
      x.FillNormal(6);
      r.FillNormal(7);
      x.SetOne(at, NAN);
      r.SetOne(67 + at, NAN);
      r.SetOne(134 + at, INFINITY);
      Check(type, x, r, nullptr, out, sum, 67);
    }
  }
}

TEST(HwyNormRmsResidual, TakesZeroSizes) {
  Array none(DType::kBF16, {0, 64}), narrow(DType::kBF16, {4, 0});
  EXPECT_EQ(Launch(Kernel(), {&none, &none, nullptr, &none, &none}, {Scalar(1e-6), Scalar(0.0)}), 0);
  EXPECT_EQ(Launch(Kernel(), {&narrow, &narrow, nullptr, &narrow, &narrow}, {Scalar(1e-6), Scalar(0.0)}), 0);
}

}  // namespace
}  // namespace lz
