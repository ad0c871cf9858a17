// hwy.sampling.softmax: within the contract's tolerance of FP64 on every instruction set; NaN rows as documented.
#include "ops/sampling/softmax.h"

#include <gtest/gtest.h>

#include <limits>

#include "hwy/targets.h"
#include "tests/kernels/sampling/sampling_testing.h"

namespace lz::kernels {
extern const KernelFamily kernels_sampling_softmax_hwy, ops_sampling_softmax_ref;
}  // namespace lz::kernels

namespace lz {
namespace {
using namespace lz::sampling_testing;

const KernelSpec& Kernel() { return kernels::kernels_sampling_softmax_hwy[0]; }
const KernelSpec& Reference() { return kernels::ops_sampling_softmax_ref[0]; }

std::vector<double> Normal(int64_t count, double spread) {
  std::mt19937 random(4);
  std::normal_distribution<double> normal(0, spread);
  std::vector<double> values(count);
  for (double& v : values) v = normal(random);
  return values;
}

TEST(Softmax, IsWithinToleranceOfFp64) {
  const double tolerance = ops::sampling_softmax::kContract.tolerance.f32;
  for (const int64_t vocab : {1, 3, 16, 1023, 1025, 5001}) {
    for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
      Owned logits(type, {3, vocab}, {vocab + 3, 1});
      Owned expected(DType::kF32, {3, vocab}), probs(DType::kF32, {3, vocab}, {vocab + 1, 1});
      logits.Fill(Normal(3 * vocab, 5));
      for (const double temperature : {1.0, 0.01, 1e-300, 1e300}) {
        Call call({&logits, nullptr, &probs}, {F(temperature)}),
            reference({&logits, nullptr, &expected}, {F(temperature)});
        ASSERT_EQ(reference.Run(Reference()), 0);
        for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
          hwy::SetSupportedTargetsForTest(target);
          hwy::GetChosenTarget().DeInit();
          ASSERT_EQ(call.Run(Kernel()), 0);
          for (int64_t r = 0; r < 3; ++r) {
            for (int64_t i = 0; i < vocab; ++i) {
              const double wanted = expected.view().GetRow(r, i);
              ASSERT_NEAR(probs.view().GetRow(r, i), wanted, tolerance * (1 + wanted))
                  << hwy::TargetName(target) << " vocab " << vocab << " temperature " << temperature;
            }
          }
        }
      }
    }
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().DeInit();
}

TEST(Softmax, DifferencesMayLeaveFloat32) {
  constexpr int64_t kVocab = 40;
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF64}) {
    const double largest = type == DType::kF64 ? 1.7e308 : 3.3e38;
    Owned logits(type, {1, kVocab}), probs(DType::kF32, {1, kVocab});
    for (int64_t i = 0; i < kVocab; ++i) logits.view().SetRow(0, i, largest * (2.0 * double(i) / (kVocab - 1) - 1));
    logits.view().SetRow(0, 5, -std::numeric_limits<double>::infinity());
    for (const double temperature : {1.5, largest / 100, largest / 3, largest, 1e300, 1.7e308}) {
      std::vector<double> wanted(kVocab);
      double sum = 0;
      for (int64_t i = 0; i < kVocab; ++i) {
        wanted[i] =
            std::exp(logits.view().GetRow(0, i) / temperature - logits.view().GetRow(0, kVocab - 1) / temperature);
        sum += wanted[i];
      }
      Call call({&logits, nullptr, &probs}, {F(temperature)});
      for (const KernelSpec* kernel : {&Kernel(), &Reference()}) {
        if (kernel == &Kernel() && type == DType::kF64) continue;
        ASSERT_EQ(call.Run(*kernel), 0);
        for (int64_t i = 0; i < kVocab; ++i) {
          ASSERT_NEAR(probs.view().GetRow(0, i), wanted[i] / sum, 1e-5)
              << kernel->id << " " << Info(type).name << " temperature " << temperature << " element " << i;
        }
      }
    }
  }
}

TEST(Softmax, RowsWithoutAProbabilityAreNaN) {
  constexpr double kHuge = std::numeric_limits<double>::infinity();
  for (const KernelSpec* kernel : {&Kernel(), &Reference()}) {
    Owned logits(DType::kF32, {4, 40}), probs(DType::kF32, {4, 40});
    logits.Fill(Normal(160, 1));
    logits.view().SetRow(0, 39, std::numeric_limits<double>::quiet_NaN());
    logits.view().SetRow(1, 3, kHuge);
    for (int64_t i = 0; i < 40; ++i) logits.view().SetRow(2, i, -kHuge);
    logits.view().SetRow(3, 0, -kHuge);
    Call call({&logits, nullptr, &probs}, {F(1)});
    ASSERT_EQ(call.Run(*kernel), 0);
    for (int64_t r = 0; r < 3; ++r) EXPECT_TRUE(std::isnan(probs.view().GetRow(r, 20))) << kernel->id << " row " << r;
    EXPECT_EQ(probs.view().GetRow(3, 0), 0) << kernel->id;
    EXPECT_GT(probs.view().GetRow(3, 20), 0) << kernel->id;
  }
}

TEST(Softmax, TemperatureIsChecked) {
  for (const double bad : {0.0, -1.0, std::numeric_limits<double>::infinity()}) {
    std::vector<lz_scalar> scalars = {F(bad)};
    const std::vector<lz_tensor> absent(2, lz_tensor{.ndim = -1});
    BoundArgs args = {absent.data(), scalars.data(), nullptr};
    EXPECT_EQ(ops::sampling_softmax::kContract.canonicalize(args).parts().field, "temperature");
  }
}

}  // namespace
}  // namespace lz
