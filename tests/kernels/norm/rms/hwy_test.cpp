// hwy.norm.rms against FP64 loops: sizes around vector widths, strides, NaN, aliasing, partitions.
#include "ops/norm/rms.h"

#include <gtest/gtest.h>

#include "tests/kernels/call.h"

namespace lz::kernels {
extern const KernelFamily kernels_norm_rms_hwy;
}

namespace lz {
namespace {
using namespace testing_call;

const KernelSpec& Kernel() { return kernels::kernels_norm_rms_hwy[0]; }

std::vector<double> Exact(const std::vector<double>& x, const std::vector<double>& w, int64_t hidden, double eps,
                          double offset) {
  std::vector<double> out(x.size());
  for (size_t row = 0; row < x.size(); row += size_t(hidden)) {
    double sum = 0;
    for (size_t i = row; i < row + size_t(hidden); ++i) sum += x[i] * x[i];
    const double rms = std::sqrt(sum / double(hidden) + eps);
    for (size_t i = row; i < row + size_t(hidden); ++i) out[i] = x[i] / rms * ((w.empty() ? 1 : w[i - row]) + offset);
  }
  return out;
}

void Check(DType type, Array& x, Array* w, Array& out, int64_t hidden, double offset = 0) {
  const auto want = Exact(x.Values(), w ? w->Values() : std::vector<double>(), hidden, 1e-5, offset);
  ASSERT_EQ(Launch(Kernel(), {&x, w, &out}, {Scalar(1e-5), Scalar(offset)}), 0);
  ExpectClose(out.Values(), want, ToleranceOf(ops::norm_rms::kContract.tolerance, type));
  EXPECT_TRUE(out.PaddingUntouched());
}

TEST(HwyNormRms, AgreesWithFp64AtEverySizeAndDType) {
  ForEachTarget([] {
    for (const DType type : kTestTypes) {
      for (const int64_t hidden : {1, 3, 7, 8, 15, 16, 17, 33, 63, 64, 65, 127, 128, 129, 576, 1537}) {
        SCOPED_TRACE(std::string(Info(type).name) + " hidden " + std::to_string(hidden));
        Array x(type, {3, hidden}), w(type, {hidden}), out(type, {3, hidden}, 3);
        x.FillNormal(1);
        w.FillNormal(2);
        Check(type, x, &w, out, hidden);
        Check(type, x, &w, out, hidden, 1.0);
        Check(type, x, nullptr, out, hidden, 0.25);
      }
    }
  });
}

TEST(HwyNormRms, TakesRowsOfAnyStrideAndOrder) {
  for (const DType type : kTestTypes) {
    Array padded(type, {5, 50}, 7), permuted(type, {2, 3, 4, 40}, 5, {2, 0, 1, 3});
    Array w50(type, {50}), w40(type, {40}), out50(type, {5, 50}), out40(type, {2, 3, 4, 40}, 1, {1, 0, 2, 3});
    for (Array* a : {&padded, &permuted, &w50, &w40}) a->FillNormal(3);
    Check(type, padded, &w50, out50, 50);
    Check(type, permuted, &w40, out40, 40);
  }
}

TEST(HwyNormRms, MayWriteOverItsInput) {
  for (const DType type : kTestTypes) {
    for (const int64_t hidden : {5, 64, 100}) {
      Array x(type, {3, hidden}), w(type, {hidden});
      x.FillNormal(4);
      w.FillNormal(5);
      Check(type, x, &w, x, hidden);
    }
  }
}

TEST(HwyNormRms, CarriesNaNToItsRowAlone) {
  for (const DType type : kTestTypes) {
    for (const int64_t at : {0, 63, 66}) {  // in a whole vector and in the rest of the row
      Array x(type, {3, 67}), w(type, {67}), out(type, {3, 67});
      x.FillNormal(6);
      w.FillNormal(7);
      x.SetOne(67 + at, NAN);
      Check(type, x, &w, out, 67);
    }
    Array x(type, {2, 67}), w(type, {67}), out(type, {2, 67});
    x.FillNormal(6);
    w.FillNormal(7);
    w.SetOne(66, NAN);
    Check(type, x, &w, out, 67);
  }
}

TEST(HwyNormRms, TakesZeroSizesAndZeros) {
  Array none(DType::kF32, {0, 64}), narrow(DType::kF32, {4, 0}), w(DType::kF32, {64}), w0(DType::kF32, {0});
  EXPECT_EQ(Launch(Kernel(), {&none, &w, &none}, {Scalar(1e-6), Scalar(0.0)}), 0);
  EXPECT_EQ(Launch(Kernel(), {&narrow, &w0, &narrow}, {Scalar(1e-6), Scalar(0.0)}), 0);
  Array zeros(DType::kF32, {2, 64}), out(DType::kF32, {2, 64});
  zeros.Set(std::vector<double>(128, 0.0));
  Check(DType::kF32, zeros, nullptr, out, 64);
}

TEST(HwyNormRms, GivesTheSameBitsWhateverThePartition) {
  Array x(DType::kF32, {7, 20000}), once(DType::kF32, {7, 20000});  // a row is more than a grain: parts of two rows
  x.FillNormal(8);
  Check(DType::kF32, x, nullptr, once, 20000);
  Array row(DType::kF32, {1, 20000}), out(DType::kF32, {1, 20000});
  const auto values = x.Values();
  row.Set({values.begin() + 60000, values.begin() + 80000});
  Check(DType::kF32, row, nullptr, out, 20000);
  const auto all = once.Values(), one = out.Values();
  EXPECT_TRUE(std::equal(one.begin(), one.end(), all.begin() + 60000));
}

}  // namespace
}  // namespace lz
