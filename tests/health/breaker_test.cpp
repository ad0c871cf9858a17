// The breaker's states in virtual time.
#include "health/breaker.h"

#include <gtest/gtest.h>

namespace lz {
namespace {

constexpr BreakerLimits kLimits{.failures = 3, .retry_s = 30, .max_retry_s = 100};

TEST(Breaker, OpensAfterFailuresInARow) {
  Breaker b;
  EXPECT_FALSE(b.Failed(0, kLimits));
  EXPECT_FALSE(b.Failed(1, kLimits));
  EXPECT_FALSE(b.Passed(2));  // a success between them starts the count again
  EXPECT_FALSE(b.Failed(3, kLimits));
  EXPECT_FALSE(b.Failed(4, kLimits));
  EXPECT_EQ(b.state(4), BreakerState::kClosed);
  EXPECT_TRUE(b.Failed(5, kLimits));
  EXPECT_EQ(b.state(5), BreakerState::kOpen);
  EXPECT_DOUBLE_EQ(b.retry_at(), 35);
}

TEST(Breaker, ManyFailuresInAShortTimeOpenItToo) {
  Breaker b;
  for (int i = 0; i < Breaker::kBurst; ++i) {
    EXPECT_FALSE(b.Failed(i, kLimits)) << i;
    b.Passed(i);
  }
  EXPECT_TRUE(b.Failed(Breaker::kBurst, kLimits));
  Breaker slow;
  for (int i = 0; i < 3 * Breaker::kBurst; ++i) {
    EXPECT_FALSE(slow.Failed(i * Breaker::kBurstSeconds, kLimits)) << i;
    slow.Passed(i * Breaker::kBurstSeconds);
  }
}

Breaker Opened(double at) {
  Breaker b;
  for (int i = 0; i < kLimits.failures; ++i) b.Failed(at, kLimits);
  return b;
}

TEST(Breaker, OneCallTriesIt) {
  Breaker b = Opened(0);
  EXPECT_FALSE(b.ClaimTrial(29));
  EXPECT_EQ(b.state(30), BreakerState::kHalfOpen);
  EXPECT_TRUE(b.ClaimTrial(30));
  EXPECT_FALSE(b.ClaimTrial(31));
  EXPECT_TRUE(b.ClaimTrial(30 + Breaker::kTrialSeconds + 1));  // the first one never came back
  EXPECT_TRUE(b.Passed(95));
  EXPECT_EQ(b.state(95), BreakerState::kClosed);
  EXPECT_FALSE(b.counts());
}

TEST(Breaker, EachFailedTrialDoublesTheTimeUpToALimit) {
  Breaker b = Opened(0);
  double now = 0;
  for (const double wait : {30, 60, 100, 100}) {
    EXPECT_DOUBLE_EQ(b.retry_at(), now + wait);
    now = b.retry_at();
    ASSERT_TRUE(b.ClaimTrial(now));
    EXPECT_TRUE(b.Failed(now, kLimits));  // one failure is enough
    EXPECT_EQ(b.state(now), BreakerState::kOpen);
  }
}

TEST(Breaker, AFailureOfACallThatBeganBeforeItOpenedChangesNothing) {
  Breaker b = Opened(0);
  EXPECT_FALSE(b.Failed(1, kLimits));
  EXPECT_DOUBLE_EQ(b.retry_at(), 30);
}

// A kernel that passes its trials and fails again right away is not tried every 30 s without an end.
TEST(Breaker, OpeningSoonAfterATrialGoesOnWithTheLongerTime) {
  Breaker b = Opened(0);
  ASSERT_TRUE(b.Passed(30));
  for (int i = 0; i < kLimits.failures; ++i) b.Failed(40, kLimits);
  EXPECT_DOUBLE_EQ(b.retry_at(), 40 + 60);
  ASSERT_TRUE(b.Passed(100));
  for (int i = 0; i < kLimits.failures; ++i) b.Failed(1000, kLimits);  // long after
  EXPECT_DOUBLE_EQ(b.retry_at(), 1000 + 30);
}

TEST(Breaker, FailuresAreForgottenAfterManySuccesses) {
  Breaker b;
  b.Failed(0, kLimits);
  for (uint64_t i = 0; i + 1 < Breaker::kCalm; ++i) b.Passed(1);
  EXPECT_TRUE(b.counts());
  b.Passed(1);
  EXPECT_FALSE(b.counts());
}

}  // namespace
}  // namespace lz
