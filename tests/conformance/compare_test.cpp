// The measures of src/verify/compare.h on numbers chosen for them: what each allows, and that it allows no more.
#include "verify/compare.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/view.h"
#include "ops/mlp/linear.h"
#include "ops/norm/rms.h"

namespace lz::verify {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
const Contract& kElementwise = ops::norm_rms::kContract;
const Contract& kRowMax = ops::mlp_linear::kContract;

using Values = std::vector<double>;

// `got` has rows of `row` elements.
bool Agrees(const Contract& contract, DType dtype, const Values& got, const Values& wanted, int64_t row = 1,
            std::string_view numerics = {}, const Nearby& nearby = {}) {
  OwnedTensor t = OwnedTensor::RowMajor(dtype, {int64_t(got.size()) / row, row});
  const View view(t.tensor());
  for (size_t i = 0; i < got.size(); ++i) view.Store(int64_t(i), got[i]);
  return CompareFloats(contract, numerics, "output", t.tensor(), wanted, nearby).ok;
}

TEST(Measures, InfinityIsRightWhereTheReferenceRoundsToIt) {
  struct Limit {
    DType dtype;
    double overflow;
  };
  for (const auto& [dtype, overflow] :
       {Limit{DType::kF16, 65520}, {DType::kBF16, 0x1.ffp127}, {DType::kF32, 0x1.ffffffp127}}) {
    SCOPED_TRACE(Info(dtype).name);
    const double bound = BoundOf(kElementwise.tolerance, dtype);
    for (const Contract* contract : {&kElementwise, &kRowMax}) {
      EXPECT_TRUE(Agrees(*contract, dtype, {kInfinity}, {overflow}));
      EXPECT_TRUE(Agrees(*contract, dtype, {kInfinity}, {overflow * (1 - 0.9 * bound)}));  // a right value beyond it
      EXPECT_FALSE(Agrees(*contract, dtype, {kInfinity}, {overflow * (1 - 2 * bound)}));
      EXPECT_FALSE(Agrees(*contract, dtype, {-kInfinity}, {overflow}));
      EXPECT_FALSE(Agrees(*contract, dtype, {overflow / 1.1}, {overflow * 1.1}));  // saturated
    }
  }
}

TEST(Measures, ASumWhosePartsOverflowMayBeAnything) {
  for (const double parts : {0.4, 0.6, 30.0}) {
    const Nearby nearby = [&](double relative, int draw) {
      return Values{1e30 + (draw % 2 ? relative * parts : 0) * double(std::numeric_limits<float>::max())};
    };
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const double got : {kInfinity, -kInfinity, std::nan("")}) {
        EXPECT_EQ(Agrees(kRowMax, dtype, {got}, {1e30}, 1, {}, nearby), parts > 0.5);
        EXPECT_FALSE(Agrees(kElementwise, dtype, {got}, {1e30}, 1, {}, nearby));
        EXPECT_FALSE(Agrees(kRowMax, dtype, {got}, {1e30}));
      }
    }
  }
}

// Of a long row each element is anything by its own parts alone, and an infinity in an input is none of them.
TEST(Measures, ALongRowMayBeAnythingWhereItsOwnPartsOverflow) {
  const double largest = std::numeric_limits<float>::max();
  Values wanted(9, 1e30);
  const Nearby nearby = [&](double relative, int draw) {
    Values moved = wanted;
    moved[4] += (draw % 2 ? relative * 2 : 0) * largest;
    return moved;
  };
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const double r : {1e30, 1e39}) {
      for (const double bad : {kInfinity, -kInfinity, std::nan("")}) {
        wanted[4] = r;
        Values got = wanted;
        got[4] = bad;
        EXPECT_TRUE(Agrees(kRowMax, dtype, got, wanted, 9, {}, nearby));
        EXPECT_TRUE(Agrees(kRowMax, dtype, got, wanted, 9, "fp32", nearby));
        got[5] = bad;
        EXPECT_FALSE(Agrees(kRowMax, dtype, got, wanted, 9, {}, nearby));
      }
    }
    wanted[4] = kInfinity;
    Values got = wanted;
    got[4] = std::nan("");
    EXPECT_FALSE(Agrees(kRowMax, dtype, got, wanted, 9, {}, nearby));
  }
}

TEST(Measures, ARowIsMeasuredByItsOwnLargestValue) {
  Values wanted(16, 1000);
  std::fill(wanted.begin() + 8, wanted.end(), 1.0);
  Values got = wanted;
  got[0] += 0.009;
  EXPECT_TRUE(Agrees(kRowMax, DType::kF32, got, wanted, 8));
  got[8] += 0.002;  // nothing beside 1000, much beside 1
  EXPECT_FALSE(Agrees(kRowMax, DType::kF32, got, wanted, 8));
  EXPECT_FALSE(Agrees(kRowMax, DType::kF32, got, wanted, 4));
}

TEST(Measures, WhatIsBelowTheNormalNumbersMayBeZero) {
  for (const std::string_view numerics : {"", "fp32"}) {
    EXPECT_TRUE(Agrees(kRowMax, DType::kF32, {0, -0.0}, {2e-133, 1e-37}, 2, numerics));
    EXPECT_FALSE(Agrees(kRowMax, DType::kF32, {0, 0}, {2e-133, 1e-35}, 2, numerics));
  }
}

TEST(Measures, ARowThatCancelsMayErrAsItsInputsMay) {
  const double summand = 1000;  // r = summand - (summand - 0.001)
  const Nearby nearby = [&](double relative, int draw) {
    return Values{0.001 + (draw % 2 ? 2 : 0) * relative * summand};
  };
  EXPECT_FALSE(Agrees(kRowMax, DType::kF32, {0.011}, {0.001}));
  EXPECT_TRUE(Agrees(kRowMax, DType::kF32, {0.011}, {0.001}, 1, {}, nearby));
  EXPECT_FALSE(Agrees(kRowMax, DType::kF32, {0.031}, {0.001}, 1, {}, nearby));
}

// Eight elements do not all cancel by chance: that they may move, each in its way, allows nothing.
TEST(Measures, ALongRowMayNotErrAsItsElementsMay) {
  const Values wanted = {0.01, 0.01, 0.01, 1, 0.01, 0.01, 0.01, 0.01};
  const Nearby apart = [&](double relative, int draw) {
    Values moved = wanted;
    for (size_t i = 0; i < moved.size(); ++i) moved[i] += ((i >> draw % 3) % 2 ? 20 : -20) * relative * (i != 3);
    return moved;
  };
  for (const size_t at : {0, 3, 5}) {
    Values got = wanted;
    got[at] += 0.9e-5;
    EXPECT_TRUE(Agrees(kRowMax, DType::kF32, got, wanted, 8, {}, apart));
    got[at] += 0.4e-5;
    EXPECT_FALSE(Agrees(kRowMax, DType::kF32, got, wanted, 8, {}, apart));
    EXPECT_TRUE(Agrees(kRowMax, DType::kF32, got, wanted, 4, {}, apart));
  }
}

// A row of one factor, h d_j with h = 1000 - 999.999, moves as a whole, and no further than h does.
TEST(Measures, ALongRowThatCancelsAsAWholeMayErrAsItsFactorMay) {
  Values wanted(16);
  for (size_t i = 0; i < wanted.size(); ++i) wanted[i] = 0.001 * double(i % 8 + 1);
  const auto scaled = [&](double factor) {
    Values all = wanted;
    for (double& v : all) v *= factor;
    return all;
  };
  const Nearby nearby = [&](double relative, int draw) { return scaled(1 + (draw % 2 ? 2 : 0) * relative * 1e6); };
  for (std::string_view numerics : {"", "fp32"}) {
    SCOPED_TRACE(numerics);
    const double t = numerics.empty() ? 1e-5 : 2e-6;
    EXPECT_FALSE(Agrees(kRowMax, DType::kF32, scaled(1 + t * 1e6), wanted, 8, numerics));
    EXPECT_TRUE(Agrees(kRowMax, DType::kF32, scaled(1 + t * 1e6), wanted, 8, numerics, nearby));
    EXPECT_FALSE(Agrees(kRowMax, DType::kF32, scaled(1 + 5 * t * 1e6), wanted, 8, numerics, nearby));
    Values one_errs = scaled(1 + t * 1e6);
    one_errs[9] *= 1 + 20 * t;
    EXPECT_FALSE(Agrees(kRowMax, DType::kF32, one_errs, wanted, 8, numerics, nearby));
  }
}

TEST(Measures, FewElementsMayAllBeRoundedByHalfAStep) {
  const double halfway = 1 + 0x1p-8;  // in bf16 1 or 1 + 2^-7: 3.9e-3 of the norm, beyond the class's 2.2e-3
  EXPECT_TRUE(Agrees(kElementwise, DType::kBF16, {1}, {halfway}, 1, "fp32"));
  EXPECT_FALSE(Agrees(kElementwise, DType::kBF16, {1 + 0x1p-7}, {1 + 0x1p-9}, 1, "fp32"));  // the wrong neighbour
  EXPECT_TRUE(Agrees(kElementwise, DType::kF32, {1 + 1.9e-6}, {1}, 1, "fp32"));
  EXPECT_FALSE(Agrees(kElementwise, DType::kF32, {1 + 2.2e-6}, {1}, 1, "fp32"));
}

}  // namespace
}  // namespace lz::verify
