// Statistics of tuning on synthetic times: what noise may not do.
#include "perfdb/compare.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace lz::perfdb {
namespace {

// Times of `rounds` rounds around `us`, with a common drift of the machine and noise of each sample.
struct Machine {
  explicit Machine(unsigned seed) : random(seed) {}
  std::mt19937 random;
  std::normal_distribution<double> normal;

  std::vector<std::vector<double>> Rounds(size_t rounds, const std::vector<double>& us, double drift, double noise) {
    std::vector<std::vector<double>> times(us.size());
    double level = 0;
    for (size_t n = 0; n < rounds; ++n) {
      level += drift * normal(random);
      for (size_t side = 0; side < us.size(); ++side) {
        times[side].push_back(us[side] * std::exp(level + noise * normal(random)));
      }
    }
    return times;
  }
};

constexpr double kLeast = 0.01;

TEST(CompareTest, ARatioIsPairedByRound) {
  Machine machine(1);
  const auto times = machine.Rounds(20, {90, 100}, 0.2, 0.005);  // the machine drifts far more than they differ
  const Ratio ratio = PairedRatio(times[0], times[1]);
  EXPECT_NEAR(ratio.value, 0.9, 0.01);
  EXPECT_LT(ratio.high, 0.92);
  EXPECT_GT(ratio.low, 0.88);
  EXPECT_GT(ratio.confidence, 0.9999);
  EXPECT_LT(PairedRatio(times[1], times[0]).confidence, 0.0001);
}

TEST(CompareTest, TheIntervalIsWilcoxons) {
  // n = 7: the third smallest and third largest of the 28 averages, since P(W <= 2) = 3/128.
  std::vector<double> a, b(7, 1.0);
  for (int i = 1; i <= 7; ++i) a.push_back(std::exp(i));
  const Ratio ratio = PairedRatio(a, b);
  EXPECT_NEAR(std::log(ratio.value), 4, 1e-9);
  EXPECT_NEAR(std::log(ratio.low), 2, 1e-9);  // averages 1, 1.5, 2, 2, ...
  EXPECT_NEAR(std::log(ratio.high), 6, 1e-9);
  const Ratio none = PairedRatio({}, {});
  EXPECT_TRUE(none.low == 0 && std::isinf(none.high));
}

TEST(CompareTest, AnEqualTwinNeverReplacesTheDefault) {
  for (unsigned seed = 0; seed < 2000; ++seed) {
    Machine machine(seed);
    const auto times = machine.Rounds(20, {100, 100, 100}, 0.05, 0.01);
    const Ratio ratio = PairedRatio(times[1], times[0]);
    EXPECT_FALSE(Replaces(ratio, SpreadOf(times[0], times[2]), kLeast)) << "seed " << seed;
  }
}

TEST(CompareTest, ATwinThatIsThreePercentSlowerIsNeverChosen) {
  for (unsigned seed = 0; seed < 2000; ++seed) {
    Machine machine(seed);
    const auto times = machine.Rounds(20, {100, 103, 100}, 0.05, 0.01);
    EXPECT_FALSE(Replaces(PairedRatio(times[1], times[0]), SpreadOf(times[0], times[2]), kLeast)) << "seed " << seed;
  }
}

TEST(CompareTest, AGainBeyondNoiseIsFound) {
  int found = 0;
  for (unsigned seed = 0; seed < 200; ++seed) {
    Machine machine(seed);
    const auto times = machine.Rounds(20, {100, 95, 100}, 0.05, 0.01);
    found += Replaces(PairedRatio(times[1], times[0]), SpreadOf(times[0], times[2]), kLeast);
  }
  EXPECT_GE(found, 196);
  // Noise of the default against itself that is as large as the gain keeps it.
  Machine machine(3);
  const auto noisy = machine.Rounds(20, {100, 95, 100}, 0.05, 0.08);
  EXPECT_FALSE(Replaces(PairedRatio(noisy[1], noisy[0]), SpreadOf(noisy[0], noisy[2]), kLeast));
}

TEST(CompareTest, ScreeningKeepsTheDefaultAndTheFasterHalf) {
  const std::vector<double> us = {10, 11, 12, 12.5, 40, 12.8, 12.9, 99};
  EXPECT_EQ(Survivors(us, 7, 1.3, 3), (std::vector<size_t>{0, 1, 2, 3, 7}));
  EXPECT_EQ(Survivors(us, 0, 1.3, 6), (std::vector<size_t>{0, 1, 2, 3, 5, 6}));
  EXPECT_EQ(Survivors(us, 4, 1.05, 6), (std::vector<size_t>{0, 4}));
}

TEST(CompareTest, OnlyAMajorityMayWin) {
  const auto with = [](std::vector<double> values) {
    std::vector<double> distances;
    for (double a : values) {
      for (double b : values) distances.push_back(std::fabs(a - b));
    }
    return MajorityOf(distances, values.size(), 1.0);
  };
  EXPECT_EQ(with({0, 0.5, 9}), (std::vector<size_t>{0, 1}));
  EXPECT_EQ(with({0, 9, 0.2, 0.4, 30}), (std::vector<size_t>{0, 2, 3}));
  EXPECT_TRUE(with({0, 9}).empty());            // neither
  EXPECT_TRUE(with({0, 0.1, 9, 9.1}).empty());  // half is no majority
  EXPECT_TRUE(with({0}).empty());
  EXPECT_TRUE(with({}).empty());
}

TEST(CompareTest, VariantsLoseLeastOverTheWorkload) {
  constexpr double kNone = std::numeric_limits<double>::infinity();
  // Three kernels and three calls: the first is best nowhere and never bad.
  const std::vector<double> us = {11, 10, 30, 11, 30, 10, 11, kNone, 10};
  const std::vector<double> even = {1, 1, 1}, first = {100, 1, 1};
  EXPECT_EQ(BestVariants(us, even, 3, 1).kernels, (std::vector<size_t>{0}));
  EXPECT_NEAR(BestVariants(us, even, 3, 1).loss, 0.1, 1e-12);
  EXPECT_EQ(BestVariants(us, even, 3, 2).kernels, (std::vector<size_t>{1, 2}));
  EXPECT_EQ(BestVariants(us, even, 3, 2).loss, 0);
  EXPECT_EQ(BestVariants(us, even, 3, 9).kernels.size(), 3u);
  EXPECT_GT(BestVariants(us, first, 3, 1).loss, 0);
  // Too many subsets to try all: 30 calls of 40 kernels, each best at some.
  std::vector<double> many(30 * 40, 20.0);
  for (size_t call = 0; call < 30; ++call) many[call * 40 + call % 8] = 10;
  const Variants best = BestVariants(many, std::vector<double>(30, 1.0), 40, 8);
  EXPECT_EQ(best.kernels, (std::vector<size_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(best.loss, 0);
}

}  // namespace
}  // namespace lz::perfdb
