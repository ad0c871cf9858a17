// Observers and debug mode around one run of a kernel, on a device whose answers are made up.
#include "pipeline/dispatch_observer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/engine.h"

namespace lz {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> g_events;
std::vector<std::string> g_errors;  // of the next waits; none is left: no error

std::string NextError(void*) {
  g_events.emplace_back("waits");
  if (g_errors.empty()) return "";
  std::string error = g_errors.front();
  g_errors.erase(g_errors.begin());
  return error;
}

struct Recorder : Observer {
  explicit Recorder(bool wait) : wait_(wait) {}
  bool waits() const override { return wait_; }
  void Ended(const KernelRun& run, const Status& status, double) override {
    g_events.push_back((status.ok() ? "ran " : "failed ") + run.kernel.id);
  }
  bool wait_;
};

class ObserverTest : public testing::Test {
 protected:
  void SetUp() override {
    g_events.clear(), g_errors.clear();
    stream_error = &NextError;
    request.where = {2, 0};
    plan.kernel = engine.selector().registry().FindKernel("norm.rms", "hwy.norm.rms");
    ASSERT_NE(plan.kernel, nullptr);
  }
  void TearDown() override { stream_error = before; }
  Status Run(StatusCode code = StatusCode::kOk) {
    return RunKernel(plan, *plan.kernel, request, [&] {
      g_events.emplace_back("runs");
      return code == StatusCode::kOk ? Status() : Status(code, {.field = "its own"});
    });
  }

  Engine& engine = Engine::Get();
  Request request{*engine.Find("rms_norm")};
  Plan plan;
  std::string (*const before)(void*) = stream_error;
};

TEST_F(ObserverTest, WithoutObserversNothingWaits) {
  EXPECT_TRUE(Run().ok());
  EXPECT_THAT(g_events, ElementsAre("runs"));
}

TEST_F(ObserverTest, DebugModeNamesTheKernelAtFault) {
  plan.checked = true;
  EXPECT_TRUE(Run().ok());
  EXPECT_THAT(g_events, ElementsAre("waits", "runs", "waits"));
  g_errors = {"", "an illegal memory access was encountered"};
  const Status status = Run();
  EXPECT_EQ(status.code(), StatusCode::kContextLost);
  EXPECT_EQ(status.parts().field, "rms_norm: kernel hwy.norm.rms");
  EXPECT_EQ(status.parts().got, "an illegal memory access was encountered");
}

TEST_F(ObserverTest, AnEarlierErrorIsNotTheKernels) {
  plan.checked = true;
  g_errors = {"unspecified launch failure"};
  const Status status = Run();
  EXPECT_THAT(g_events, ElementsAre("waits"));  // and the kernel does not run
  EXPECT_THAT(status.parts().wanted, HasSubstr("without errors before it"));
}

TEST_F(ObserverTest, AKernelsOwnErrorStays) {
  plan.checked = true;
  EXPECT_EQ(Run(StatusCode::kKernelRefused).parts().field, "its own");
  EXPECT_THAT(g_events, ElementsAre("waits", "runs"));
}

TEST_F(ObserverTest, NothingWaitsInACaptureOrOnTheCpu) {
  plan.checked = true;
  request.flags = LZ_FLAG_CAPTURING;
  EXPECT_TRUE(Run().ok());
  request.flags = 0, request.where = {1, 0};
  EXPECT_TRUE(Run().ok());
  EXPECT_THAT(g_events, ElementsAre("runs", "runs"));
}

TEST_F(ObserverTest, AnObserverMayWait) {
  const auto patient = std::make_shared<Recorder>(true), other = std::make_shared<Recorder>(false);
  AddObserver(other);
  EXPECT_TRUE(Run().ok());
  AddObserver(patient);
  g_errors = {"", "an error"};
  EXPECT_FALSE(Run().ok());
  RemoveObserver(patient.get());
  RemoveObserver(other.get());
  EXPECT_THAT(g_events, ElementsAre("runs", "ran hwy.norm.rms", "waits", "runs", "waits", "failed hwy.norm.rms",
                                    "failed hwy.norm.rms"));
  EXPECT_EQ(num_observers.load(), 0);
}

TEST_F(ObserverTest, BeganComesBeforeTheRunAndOnlyWithIt) {
  struct Both : Recorder {
    using Recorder::Recorder;
    void Began(const KernelRun& run) override { g_events.push_back("begins " + run.kernel.id); }
  };
  const auto observer = std::make_shared<Both>(true);
  AddObserver(observer);
  EXPECT_TRUE(Run().ok());
  g_errors = {"an earlier error"};
  EXPECT_FALSE(Run().ok());
  RemoveObserver(observer.get());
  EXPECT_THAT(g_events, ElementsAre("waits", "begins hwy.norm.rms", "runs", "waits", "ran hwy.norm.rms", "waits"));
}

TEST_F(ObserverTest, AnObserverOfSelectionsCostsRunsNothing) {
  struct OfSelections : Recorder {
    using Recorder::Recorder;
    bool of_runs() const override { return false; }
  };
  const auto observer = std::make_shared<OfSelections>(true);
  AddObserver(observer);
  EXPECT_EQ(num_observers.load(), 0);
  EXPECT_TRUE(Run().ok());
  plan.checked = true;  // observed for another reason
  EXPECT_TRUE(Run().ok());
  RemoveObserver(observer.get());
  EXPECT_THAT(g_events, ElementsAre("runs", "waits", "runs", "waits"));
}

TEST_F(ObserverTest, ARemovedObserverIsFreed) {
  auto observer = std::make_shared<Recorder>(false);
  const std::weak_ptr<Recorder> seen = observer;
  AddObserver(observer);
  RemoveObserver(observer.get());
  observer.reset();
  EXPECT_TRUE(seen.expired());
}

}  // namespace
}  // namespace lz
