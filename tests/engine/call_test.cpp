// One call through every way that it can go: native and host kernels, their fallbacks of either kind, errors of both.
#include "engine/call.h"

#include <gmock/gmock.h>

#include <string>
#include <vector>

namespace lz {
namespace {

using testing::ElementsAre;

// Kernels of norm.rms, each for rows of one width.
constexpr int64_t kNative = 1028, kHost = 1036, kNativeThenHost = 1044, kLarge = 1052;
template <int64_t kHidden>
inline constexpr std::array<Constraint, 1> kOf = {Constraint{"hidden", Rel::kEq, kHidden}};

std::vector<std::string> g_events;
int32_t Fails(const lz_kernel_args*) { return 7; }
uint64_t OneGigabyte(const lz_kernel_args*) { return uint64_t{1} << 30; }
const RunListener kListener = {
    [](const Plan& plan, const Request&) { g_events.push_back("selected " + plan.kernel->id); },
    [](const Plan&, const Plan&, const Request&, const Status&) { g_events.push_back("fell back"); },
};
struct Recorder : Observer {
  void Ended(const KernelRun& run, const Status& status, double seconds) override {
    EXPECT_GE(seconds, 0);
    g_events.push_back((status.ok() ? "ran " : "failed ") + run.kernel.id + (run.fallback ? " as a fallback" : ""));
  }
};
const HostRuntime kRuntime = {nullptr, nullptr, nullptr};  // RunCall only asks whether there is a host language

struct TestCaller : Caller {
  explicit TestCaller(float* memory) : output(memory) { listener = &kListener; }
  Status BindMemory(const KernelEntry& kernel, const Transforms&, Request& r) {
    g_events.push_back("memory for " + kernel.id);
    BindOutput(r, 0, output);
    if (kernel.id == no_memory_for) return Status(StatusCode::kOutOfMemory, {.field = "memory"});
    return no_memory ? Status(StatusCode::kInvalidRequest, {.field = "memory"}) : Status();
  }
  Status RunHost(const KernelEntry& kernel, const Transforms&, Request&) {
    g_events.push_back("host " + kernel.id);
    return host_fails == StatusCode::kOk ? Status() : Status(host_fails, {.field = kernel.id});
  }
  void KeepError(bool) { g_events.emplace_back("keeps"); }
  void RestoreError() { g_events.emplace_back("restores"); }

  float* output;
  StatusCode host_fails = StatusCode::kOk;
  bool no_memory = false;
  std::string no_memory_for;  // a kernel whose workspace is not to be had
};

class CallTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    const auto add = [](KernelSpec spec, std::string adapter = "") {
      spec.operation = "norm.rms", spec.priority = 100, spec.dtypes = kFloats, spec.accepts = kAcceptsAll;
      const Registry::Registration one{&spec, {}, std::move(adapter)};
      const Status status = Engine::Get().selector().registry().Register({&one, 1});
      ASSERT_TRUE(status.ok()) << status.Text();
    };
    add({.id = "host.a", .constraints = kOf<kHost>, .strides = Strides::kAny, .call = CallKind::kHost}, "tests");
    add({.id = "fails.b", .constraints = kOf<kNativeThenHost>, .strides = Strides::kAny, .launch = &Fails});
    add({.id = "large.c",
         .constraints = kOf<kLarge>,
         .strides = Strides::kAny,
         .launch = &Fails,
         .workspace = &OneGigabyte});
    add({.id = "host.b", .constraints = kOf<kNativeThenHost>, .strides = Strides::kAny, .call = CallKind::kHost},
        "tests");
    Engine::Get().Invalidate();
  }
  void SetUp() override {
    g_events.clear();
    engine.SetHost(&kRuntime);
    engine.selector().health().SetLimits({.breaker = {.failures = 1000}});
    AddObserver(recorder);
  }
  void TearDown() override {
    engine.SetHost(nullptr);
    RemoveObserver(recorder.get());
  }

  Status Call(int64_t width, TestCaller& caller, InlineCache* site = nullptr) {
    shape[0] = 1, shape[1] = width, strides[0] = width, strides[1] = 1;
    Request r(*engine.Find("rms_norm"));
    r.tensors[0] = {input.data(), {1, 0}, 2, {2, 32, 1}, shape, strides, 0};
    return RunCall(engine, r, site, caller);
  }

  Engine& engine = Engine::Get();
  std::vector<float> input = std::vector<float>(2048, 2.0f), output = std::vector<float>(2048);
  int64_t shape[2], strides[2];
  TestCaller caller{output.data()};
  const std::shared_ptr<Recorder> recorder = std::make_shared<Recorder>();
};

TEST_F(CallTest, ANativeKernelGetsItsMemory) {
  InlineCache site;
  ASSERT_TRUE(Call(kNative, caller, &site).ok());
  const std::string kernel = site.plan->kernel->id;
  EXPECT_THAT(g_events, ElementsAre("selected " + kernel, "memory for " + kernel, "ran " + kernel));
  EXPECT_NEAR(output[kNative - 1], 1.0f, 1e-4f);
  g_events.clear();
  ASSERT_TRUE(Call(kNative, caller, &site).ok());  // in the site's cache now
  EXPECT_THAT(g_events, ElementsAre("memory for " + kernel, "ran " + kernel));
}

TEST_F(CallTest, NobodyHearsOfACallAfterTheObserverIsRemoved) {
  RemoveObserver(recorder.get());
  EXPECT_EQ(num_observers.load(), 0);
  ASSERT_TRUE(Call(kHost, caller).ok());
  EXPECT_THAT(g_events, ElementsAre("selected host.a", "host host.a"));
}

TEST_F(CallTest, EveryObserverHearsOfEveryCall) {
  const auto other = std::make_shared<Recorder>();
  AddObserver(other);
  ASSERT_TRUE(Call(kHost, caller).ok());
  RemoveObserver(other.get());
  EXPECT_THAT(g_events, ElementsAre("selected host.a", "host host.a", "ran host.a", "ran host.a"));
}

TEST_F(CallTest, AnErrorOfTheCallersMemoryIsTheCalls) {
  caller.no_memory = true;
  EXPECT_EQ(Call(kNative, caller).parts().field, "memory");
}

TEST_F(CallTest, WhereTheWorkspaceIsNotToBeHadAnotherKernelRuns) {
  InlineCache site;
  int64_t free = int64_t{64} << 30;
  engine.selector().set_free_memory([&] { return free; });
  caller.no_memory_for = "none";
  ASSERT_TRUE(Call(kLarge, caller, &site).ok());  // the control: it is chosen
  ASSERT_EQ(site.plan->kernel->id, "large.c");
  g_events.clear();
  caller.no_memory_for = "large.c";
  free = int64_t{1} << 20;
  ASSERT_TRUE(Call(kLarge, caller, &site).ok());
  EXPECT_EQ(site.plan->kernel->id, "large.c");  // the other choice is this call's
  ASSERT_EQ(g_events.size(), 5u);
  EXPECT_EQ(g_events[0] + ", " + g_events[1], "memory for large.c, keeps");
  EXPECT_EQ(g_events[4], "fell back");
  EXPECT_NEAR(output[kLarge - 1], 1.0f, 1e-4f);
  g_events.clear();
  free = int64_t{64} << 30;  // whatever is said to be free: it could not be had
  ASSERT_TRUE(Call(kLarge, caller, &site).ok());
  EXPECT_EQ(g_events.back(), "fell back");
  engine.selector().set_free_memory(&FreeHostBytes);
}

TEST_F(CallTest, AHostKernelRuns) {
  ASSERT_TRUE(Call(kHost, caller).ok());
  EXPECT_THAT(g_events, ElementsAre("selected host.a", "host host.a", "ran host.a"));
}

TEST_F(CallTest, ANativeFallbackOfAHostKernelGetsItsMemory) {
  const uint64_t before = engine.selector().num_fallbacks();
  caller.host_fails = StatusCode::kKernelFailed;
  ASSERT_TRUE(Call(kHost, caller).ok());
  EXPECT_THAT(g_events, ElementsAre("selected host.a", "host host.a", "failed host.a", "keeps",
                                    "memory for hwy.norm.rms", "ran hwy.norm.rms as a fallback", "fell back"));
  EXPECT_EQ(engine.selector().num_fallbacks(), before + 1);
  EXPECT_NEAR(output[kHost - 1], 1.0f, 1e-4f);
}

TEST_F(CallTest, WhereBothFailTheErrorIsThatOfTheFirstUnlessItRefused) {
  caller.no_memory = true;
  caller.host_fails = StatusCode::kKernelFailed;
  EXPECT_EQ(Call(kHost, caller).parts().field, "host.a");
  EXPECT_EQ(g_events.back(), "restores");
  caller.host_fails = StatusCode::kKernelRefused;
  EXPECT_EQ(Call(kHost, caller).parts().field, "memory");
}

TEST_F(CallTest, WithoutAHostLanguageNothingAnswersForAHostKernel) {
  engine.SetHost(nullptr);
  caller.host_fails = StatusCode::kNotInstalled;
  EXPECT_EQ(Call(kHost, caller).code(), StatusCode::kNotInstalled);
}

// Debug mode finds an error of the device after a kernel that seemed to succeed: it is the call's, and nothing hides
// it.
TEST_F(CallTest, NoFallbackHidesWhatDebugModeFinds) {
  const auto scope = engine.PolicyScope(0, R"({"debug": true})");
  ASSERT_TRUE(scope.ok());
  const auto before = stream_error;
  stream_error = [](void*) { return std::string(g_events.empty() ? "" : "an illegal memory access"); };
  shape[0] = 1, shape[1] = kHost, strides[0] = kHost, strides[1] = 1;
  Request r(*engine.Find("rms_norm"));
  r.tensors[0] = {input.data(), {1, 0}, 2, {2, 32, 1}, shape, strides, 0};
  r.policy = *scope;
  ASSERT_TRUE(engine.Bind(r).ok());
  auto plan = engine.Select(r);
  ASSERT_TRUE(plan.ok());
  r.where = {2, 0};
  const Status status = RunPlan(engine, **plan, r, caller);
  stream_error = before;
  EXPECT_EQ(status.code(), StatusCode::kKernelFailed);
  EXPECT_EQ(status.parts().field, "rms_norm: kernel host.a");
  EXPECT_EQ(status.parts().got, "an illegal memory access");
  EXPECT_THAT(g_events, ElementsAre("host host.a", "failed host.a"));
}

TEST_F(CallTest, ANativeKernelFallsBackToAHostKernel) {
  const uint64_t before = engine.selector().num_fallbacks();
  ASSERT_TRUE(Call(kNativeThenHost, caller).ok());
  EXPECT_THAT(g_events, ElementsAre("selected fails.b", "memory for fails.b", "failed fails.b", "keeps", "host host.b",
                                    "ran host.b as a fallback", "fell back"));
  EXPECT_EQ(engine.selector().num_fallbacks(), before + 1);
}

}  // namespace
}  // namespace lz
