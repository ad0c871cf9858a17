// Counts of runs: what is counted, by whom, and that nothing is lost between threads.
#include "pipeline/dispatch_counters.h"

#include <gtest/gtest.h>

#include <numeric>
#include <thread>

#include "engine/engine.h"

namespace lz {
namespace {

class CountersTest : public testing::Test {
 protected:
  void SetUp() override {
    kernel = engine.selector().registry().FindKernel("norm.rms", "hwy.norm.rms");
    ASSERT_NE(kernel, nullptr);
  }
  void Run(double seconds, bool ok = true, bool fallback = false, bool missed = false) {
    const Status status = ok ? Status() : Status(StatusCode::kKernelFailed, {.field = "its own"});
    counters.Ended({*kernel, request, fallback, missed}, status, seconds);
  }

  Engine& engine = Engine::Get();
  Request request{*engine.Find("rms_norm")};
  const KernelEntry* kernel = nullptr;
  KernelCounters counters;
};

TEST_F(CountersTest, CountsRunsFailuresFallbacksAndMisses) {
  EXPECT_TRUE(counters.Read().empty());
  Run(1e-6, true, false, true);
  Run(1e-6);
  Run(1e-6, true, true);
  Run(1e-6, false);
  const auto counts = counters.Read();
  ASSERT_EQ(counts.size(), 1u);
  EXPECT_EQ(counts[0].kernel, kernel);
  EXPECT_EQ(counts[0].runs, 4u);
  EXPECT_EQ(counts[0].failures, 1u);
  EXPECT_EQ(counts[0].fallbacks, 1u);
  EXPECT_EQ(counts[0].misses, 1u);
  EXPECT_NEAR(double(counts[0].nanoseconds), 3000, 3);
}

TEST_F(CountersTest, ARunIsInTheBucketOfItsTime) {
  for (const auto& [seconds, bucket] :
       {std::pair{0.0, 0}, {-1.0, 0}, {1.1e-9, 1}, {1.0e-6, 10}, {1.1e-6, 11}, {1.0, 30}, {1e9, 39}}) {
    const auto before = counters.Read();
    Run(seconds);
    const auto after = counters.Read();
    const uint64_t was = before.empty() ? 0 : before[0].buckets[size_t(bucket)];
    EXPECT_EQ(after[0].buckets[size_t(bucket)], was + 1) << seconds;
  }
}

TEST_F(CountersTest, KernelsBeyondTheTableAreCountedTogether) {
  KernelEntry late;
  late.index = KernelCounters::kMaxKernels;
  counters.Ended({late, request, false, false}, {}, 0);
  EXPECT_EQ(counters.not_counted(), 1u);
  EXPECT_TRUE(counters.Read().empty());
}

TEST_F(CountersTest, ThreadsLoseNothing) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 10000; ++i) Run(1e-6, i % 10 != 0, i % 5 == 0, i % 2 == 0);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const KernelCount count = counters.Read().at(0);
  EXPECT_EQ(count.runs, 40000u);
  EXPECT_EQ(count.failures, 4000u);
  EXPECT_EQ(count.fallbacks, 8000u);
  EXPECT_EQ(count.misses, 20000u);
  EXPECT_EQ(std::accumulate(count.buckets.begin(), count.buckets.end(), uint64_t{0}), 36000u);
}

TEST_F(CountersTest, ThePolicyStartsAndStopsCounting) {
  const auto runs = [&] {
    uint64_t n = 0;
    for (const KernelCount& count : KernelCounters::OfProcess()->Read()) n += count.runs;
    return n;
  };
  Plan plan;
  plan.kernel = kernel;
  const auto run = [&] { EXPECT_TRUE(RunKernel(plan, *kernel, request, [] { return Status(); }).ok()); };
  const int observers = num_observers.load();
  for (const char* on : {R"({"metrics":{"enabled":true}})", R"({"metrics":{"listen":"0"}})"}) {
    const uint64_t before = runs();
    ASSERT_TRUE(engine.Configure(on).ok());
    run();
    EXPECT_EQ(runs(), before + 1);
    ASSERT_TRUE(engine.Configure(R"({"metrics":{"enabled":false,"listen":""}})").ok());
    EXPECT_EQ(num_observers.load(), observers);
    run();
    EXPECT_EQ(runs(), before + 1);
  }
}

}  // namespace
}  // namespace lz
