// Selection and dispatch after failures, with planted kernels: breakers in virtual time, quarantine, lost devices,
// short memory, numerics classes.
#include <gmock/gmock.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <thread>

#include "../pipeline/selector_fixture.h"
#include "core/view.h"
#include "verify/shadow.h"

namespace lz {
namespace {

using testing::HasSubstr;

std::atomic<int> g_calls{0}, g_fails{0};  // g_fails: so many of the next calls fail
std::atomic<int32_t> g_code{7};
int32_t Right(const lz_kernel_args* args) {
  const View x(args->tensors[0]), out(args->tensors[2]);
  for (int64_t i = 0; i < out.numel(); ++i) out.Store(i, x.Load(i));
  return 0;
}
int32_t Planted(const lz_kernel_args* args) {
  ++g_calls;
  if (g_fails.fetch_sub(1) > 0) return g_code;
  return Right(args);
}
uint64_t Large(const lz_kernel_args*) { return uint64_t{1} << 62; }
uint64_t Middling(const lz_kernel_args*) { return 8192; }

class SelectorHealth : public SelectorFixture {
 protected:
  SelectorHealth() {
    g_calls = 0, g_fails = 0, g_code = 7;
    selector.health().set_clock([this] { return now; });
    selector.health().SetLimits({.breaker = {.failures = 3, .retry_s = 30}, .error_budget = 20});
  }
  void Kernel(const char* id, lz_launch_fn launch, KernelSpec more = {}) {
    more.id = id;
    more.operation = "norm.rms";
    more.launch = launch;
    if (more.priority == 50) more.priority = 100;
    Register(more);
  }
  // The kernel that the call was planned for; the error's text if there was one.
  std::string Ran(const char* line = "input=f32[3,64] weight=f32[64]") {
    calls.clear();
    auto plan = Run(MakeCall("rms_norm", line));
    return plan.ok() ? (*plan)->kernel->id : plan.status().Text();
  }
  ReasonCode WhyNot(const char* id, const char* line = "input=f32[3,64] weight=f32[64]") {
    const SelectionReport report = Explain(MakeCall("rms_norm", line));
    const Candidate& c = Of(report, id);
    return c.admissible() ? ReasonCode::kAuto : c.reasons[0].code;
  }
  std::string Status_() { return selector.health().ToJson()["status"]; }
  double now = 1000;
};

TEST_F(SelectorHealth, AFailedCallIsAnsweredByTheNextBestKernel) {
  Kernel("bad.k", &Planted);
  Kernel("good.k", &Planted, {.priority = 90});
  g_fails = 1;
  EXPECT_EQ(Ran(), "bad.k");
  EXPECT_EQ(g_calls, 2);  // and the reference has not run
  EXPECT_TRUE(calls.back().r.fell_back);
  g_fails = 2;
  EXPECT_EQ(Ran(), "bad.k");  // both failed: an own kernel answers
  EXPECT_TRUE(calls.back().r.fell_back);
}

TEST_F(SelectorHealth, ABreakerOpensIsTriedAndCloses) {
  Kernel("bad.k", &Planted);
  g_fails = 3;
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Ran(), "bad.k") << i;
  EXPECT_EQ(WhyNot("bad.k"), ReasonCode::kBackendError);
  EXPECT_EQ(Status_(), "degraded");
  g_calls = 0;
  for (int i = 0; i < 5; ++i) EXPECT_NE(Ran(), "bad.k");
  EXPECT_EQ(g_calls, 0);
  now += 31;
  selector.health().Tick();
  EXPECT_EQ(Ran(), "bad.k");  // the trial
  EXPECT_EQ(Ran(), "bad.k");
  EXPECT_EQ(g_calls, 2);
  EXPECT_EQ(WhyNot("bad.k"), ReasonCode::kAuto);
  EXPECT_EQ(Status_(), "ok");
}

TEST_F(SelectorHealth, AFailedTrialWaitsTwiceAsLong) {
  Kernel("bad.k", &Planted);
  g_fails = 4;
  for (int i = 0; i < 3; ++i) Ran();
  now += 31;
  selector.health().Tick();
  EXPECT_EQ(Ran(), "bad.k");
  now += 31;
  selector.health().Tick();
  EXPECT_NE(Ran(), "bad.k");
  now += 30;
  selector.health().Tick();
  EXPECT_EQ(Ran(), "bad.k");
  EXPECT_EQ(WhyNot("bad.k"), ReasonCode::kAuto);
}

TEST_F(SelectorHealth, OneOfManyThreadsTriesIt) {
  Kernel("bad.k", &Planted);
  g_fails = 3;
  for (int i = 0; i < 3; ++i) Ran();
  now += 31;
  selector.health().Tick();
  std::atomic<int> chosen{0};
  const Operation& op = *selector.registry().Find("rms_norm");
  const auto line = verify::ParseCase(op, "input=f32[3,64] weight=f32[64]");
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      verify::Case c = *line;
      Request r = c.MakeRequest();
      ASSERT_TRUE(selector.Bind(r).ok());
      auto plan = selector.Select(r);
      ASSERT_TRUE(plan.ok());
      chosen += (*plan)->kernel->id == "bad.k";
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(chosen, 1);
}

TEST_F(SelectorHealth, SeveralOpenKernelsOfALibraryRefuseAllOfIt) {
  const char* ids[] = {"lib.a", "lib.b", "lib.c"};
  for (const char* id : ids) Kernel(id, &Planted);
  Kernel("lib.other", &Planted, {.priority = 99});
  Kernel("good.k", &Right, {.priority = 98});
  g_fails = 1000;
  for (int i = 0; i < 3; ++i) Ran();  // each call tries all four of them
  EXPECT_EQ(WhyNot("lib.other"), ReasonCode::kBackendError);
  EXPECT_EQ(Ran(), "good.k");
}

TEST_F(SelectorHealth, AReferenceIsNeverRefused) {
  Kernel("own.reference", &Planted, {.priority = 100, .reference = true});
  Configure(R"({"enabled": false})");
  g_fails = 20;
  for (int i = 0; i < 10; ++i) EXPECT_THAT(Ran(), HasSubstr("kernel own.reference"));
  EXPECT_EQ(WhyNot("own.reference"), ReasonCode::kAuto);
}

TEST_F(SelectorHealth, ALockedKernelWhoseBreakerIsOpenIsAnErrorThatSaysSo) {
  Kernel("bad.k", &Planted);
  g_fails = 100;
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Ran(), "bad.k");
  Configure(R"({"locks": {"norm.rms": "bad.k"}})");
  g_calls = 0;
  EXPECT_THAT(Ran(), HasSubstr("locked kernel 'bad.k'"));
  EXPECT_EQ(g_calls, 0);
}

TEST_F(SelectorHealth, TheErrorBudgetAsksForARestart) {
  Kernel("bad.k", &Planted);
  selector.health().SetLimits({.breaker = {.failures = 1000, .retry_s = 1}, .error_budget = 5});
  g_fails = 1000000;
  for (int i = 0; i < 5; ++i) Ran();
  EXPECT_NE(Status_(), "restart");
  Ran();
  const auto health = selector.health().ToJson();
  EXPECT_EQ(health["status"], "restart");
  EXPECT_EQ(health["reasons"][0]["code"], "ERROR_BUDGET_SPENT");
  now += Health::kBudgetSeconds + 20;
  EXPECT_NE(Status_(), "restart");
}

TEST_F(SelectorHealth, ResetClosesBreakers) {
  Kernel("bad.k", &Planted);
  g_fails = 3;
  for (int i = 0; i < 3; ++i) Ran();
  Status problem;
  EXPECT_EQ(selector.health().Reset("good.*", &problem), 0u);
  EXPECT_NE(Ran(), "bad.k");
  EXPECT_EQ(selector.health().Reset("bad.*", &problem), 1u);
  EXPECT_EQ(Ran(), "bad.k");
}

// ---- outcomes

TEST_F(SelectorHealth, ARefusalIsNotAFailure) {
  Kernel("picky.k", &Planted);
  g_code = LZ_LAUNCH_REFUSED;
  g_fails = 50;
  for (int i = 0; i < 20; ++i) EXPECT_EQ(Ran(), "picky.k");
  EXPECT_EQ(Status_(), "ok");
}

TEST_F(SelectorHealth, InvalidDataIsTheCallersAndNobodysFailure) {
  Kernel("k.k", &Planted);
  g_code = LZ_LAUNCH_INVALID_INDEX;
  g_fails = 50;
  for (int i = 0; i < 5; ++i) EXPECT_THAT(Ran(), HasSubstr("kernel k.k"));
  EXPECT_EQ(WhyNot("k.k"), ReasonCode::kAuto);
  EXPECT_FALSE(calls.back().r.fell_back);
}

// Data that every kernel fails on is wrong, and no kernel is to blame. As soon as one answers, the others have failed.
TEST_F(SelectorHealth, AFailureCountsOnceAnotherKernelHasAnswered) {
  Configure(R"({"allow_sources": ["bad"]})");
  Kernel("bad.k", &Planted);
  Kernel("bad.reference", &Planted, {.priority = 100, .reference = true});
  g_fails = 1000;
  for (int i = 0; i < 20; ++i) EXPECT_THAT(Ran(), HasSubstr("kernel bad.k"));
  EXPECT_EQ(g_calls, 40);
  EXPECT_EQ(WhyNot("bad.k"), ReasonCode::kAuto);
  EXPECT_EQ(selector.health().ToJson()["breakers"].size(), 0u);
  EXPECT_EQ(selector.health().ToJson()["error_budget"]["used"], 0);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(WhyNot("bad.k"), ReasonCode::kAuto) << i;
    g_fails = 1;
    EXPECT_EQ(Ran(), "bad.k");
  }
  EXPECT_EQ(WhyNot("bad.k"), ReasonCode::kBackendError);
}

TEST_F(SelectorHealth, ALockedKernelThatFailsHasNobodyToShowWhoseFaultItWas) {
  Kernel("bad.k", &Planted);
  Configure(R"({"locks": {"norm.rms": "bad.k"}})");
  g_fails = 20;
  for (int i = 0; i < 20; ++i) EXPECT_THAT(Ran(), HasSubstr("kernel bad.k"));
  EXPECT_EQ(Ran(), "bad.k");
  EXPECT_EQ(Status_(), "ok");
}

TEST_F(SelectorHealth, ShortMemoryTakesTheSmallestWorkspaceFirst) {
  selector.set_free_memory([] { return int64_t{1} << 62; });
  Configure(R"({"memory_headroom_mb": 0, "memory": {"block_fraction": 1}})");
  Kernel("large.k", &Right, {.priority = 100, .workspace = &Large});
  Kernel("middle.k", &Planted, {.priority = 99, .workspace = &Middling});
  Kernel("none.k", &Right, {.priority = 1});
  std::vector<std::string> ran;
  const auto plan = Run(MakeCall("rms_norm", "input=f32[3,64] weight=f32[64]"));
  ASSERT_TRUE(plan.ok()) << plan.status().Text();
  EXPECT_EQ(g_calls, 0);  // the one that is ranked next needs more
  EXPECT_TRUE(calls.back().r.fell_back);
}

// CUDA's codes mean something on a CUDA device alone; here they are a kernel's own numbers.
TEST_F(SelectorHealth, OnTheCpuNoCodeIsCudas) {
  Kernel("k.k", &Planted);
  g_code = 1700;
  g_fails = 1;
  EXPECT_EQ(Ran(), "k.k");
  EXPECT_EQ(Status_(), "ok");
}

TEST(Outcome, CudasMessagesAndNumbers) {
  EXPECT_TRUE(IsLostContext(700));
  EXPECT_FALSE(IsLostContext(2));
  EXPECT_TRUE(IsLostContext("RuntimeError('CUDA error: an illegal memory access was encountered\\nCUDA kernel ...')"));
  EXPECT_FALSE(IsLostContext("ValueError('an illegal memory access was encountered')"));
  EXPECT_FALSE(IsLostContext("CUDA error: out of memory"));
  for (size_t i = 1; i < size_t(Outcome::kCount); ++i) EXPECT_EQ(OutcomeFromName(kOutcomeNames[i]), Outcome(i));
}

TEST_F(SelectorHealth, ALostDeviceAnswersNothingMore) {
  Kernel("bad.k", &Planted);
  EXPECT_EQ(Ran(), "bad.k");
  selector.health().Lose(0, "an illegal memory access was encountered");
  selector.Invalidate(EpochKind::kCapabilities);
  auto plan = Run(MakeCall("rms_norm", "input=f32[3,64] weight=f32[64]"));
  EXPECT_EQ(plan.status().code(), StatusCode::kContextLost);
  EXPECT_THAT(plan.status().Text(), HasSubstr("start the process again"));
  EXPECT_EQ(Status_(), "restart");
}

// ---- quarantine

TEST_F(SelectorHealth, AWrongKernelIsQuarantinedForItsClassOfCalls) {
  Kernel("liar.k", &Right);
  const KernelEntry& liar = *selector.registry().FindKernel("norm.rms", "liar.k");
  const auto bf16 = int64_t(DType::kBF16);
  selector.health().Report({liar, 0, Outcome::kWrong, "0.5 instead of 1", {{"dtype", Rel::kEq, bf16}}});
  EXPECT_EQ(WhyNot("liar.k"), ReasonCode::kAuto);
  const char* call = "input=bf16[3,64] weight=bf16[64]";
  EXPECT_EQ(WhyNot("liar.k", call), ReasonCode::kQuarantined);
  EXPECT_EQ(Ran(), "liar.k");
  EXPECT_NE(Ran(call), "liar.k");
  EXPECT_EQ(Ran(), "liar.k");
}

TEST_F(SelectorHealth, QuarantineSurvivesTheProcessUntilTheVersionChanges) {
  std::string made = "/tmp/lz_health_XXXXXX";
  const std::string folder = mkdtemp(made.data());
  const auto in_process = [&](uint32_t version, bool wrong) {
    Selector other;
    other.health().SetLimits({.folder = folder, .build = "build 1"});
    other.health().Begin();
    const KernelSpec spec{.id = "liar.k",
                          .operation = "norm.rms",
                          .version = version,
                          .dtypes = kFloats,
                          .accepts = kAcceptsAll,
                          .priority = 100,
                          .launch = &Right};
    const Registry::Registration one{&spec, {}, {}};
    EXPECT_TRUE(other.registry().Register({&one, 1}).ok());
    const KernelEntry& liar = *other.registry().FindKernel("norm.rms", "liar.k");
    if (wrong) other.health().Report({liar, 0, Outcome::kWrong, "wrong", {}});
    auto c = verify::ParseCase(*other.registry().Find("rms_norm"), "input=f32[3,64] weight=f32[64]");
    Request r = c->MakeRequest();
    EXPECT_TRUE(other.Bind(r).ok());
    return (*other.Select(r))->kernel->id;
  };
  EXPECT_EQ(in_process(1, false), "liar.k");
  EXPECT_NE(in_process(1, true), "liar.k");
  EXPECT_NE(in_process(1, false), "liar.k");
  EXPECT_EQ(in_process(2, false), "liar.k");
  std::filesystem::remove_all(folder);
}

// ---- 100,000 calls of 16 threads on kernels that fail, refuse, lie, and write half before they fail

int32_t Norm(const lz_kernel_args* args, int64_t rows) {
  const View x(args->tensors[0]), w(args->tensors[1]), out(args->tensors[2]);
  const int64_t n = x.size(-1);
  for (int64_t r = 0; r < rows; ++r) {
    double squares = 0;
    for (int64_t i = 0; i < n; ++i) squares += x.Load(r * n + i) * x.Load(r * n + i);
    const double scale = 1 / std::sqrt(squares / double(n) + args->scalars[0].value.f);
    for (int64_t i = 0; i < n; ++i) out.Store(r * n + i, x.Load(r * n + i) * scale * w.Load(i));
  }
  return 0;
}
template <int kEvery, int kFault>
int32_t Sometimes(const lz_kernel_args* args) {
  static std::atomic<uint64_t> calls{0};
  const int64_t rows = View(args->tensors[0]).size(0);
  if (++calls % kEvery != 0) return Norm(args, rows);
  switch (kFault) {
    case 0: return 9;                                         // fails
    case 1: return LZ_LAUNCH_REFUSED;                         // refuses
    case 2: return Norm(args, rows - 1), 9;                   // writes a part and fails
    case 3: return Norm(args, rows), Right(args);             // another's output
    default: View(args->tensors[2]).Store(0, NAN); return 0;  // what was there before, and a NaN
  }
}

int32_t NormOfAll(const lz_kernel_args* args) { return Norm(args, View(args->tensors[0]).size(0)); }
int g_copies = 0;
TEST_F(SelectorHealth, AResultOnADeviceIsComparedInTheBackground) {
  const auto copy = std::exchange(verify::copy_from_device, [](void*, const void* from, size_t bytes, void* to) {
    std::memcpy(to, from, bytes);
    return ++g_copies, true;
  });
  Configure(R"({"health": {"shadow_rate": 1}})");
  for (const char* id : {"lies.k", "right.k"}) {
    Kernel(id, *id == 'l' ? &Right : &NormOfAll, {.priority = *id == 'l' ? 100 : 90});
    ASSERT_EQ(Ran(), id);
    const KernelEntry& kernel = *selector.registry().FindKernel("norm.rms", id);
    Request r = calls.back().r;
    r.where = {2, 0};  // a CUDA device
    g_copies = 0;
    auto shadow = verify::MakeShadow(selector);
    r.flags = LZ_FLAG_CAPTURING;
    EXPECT_TRUE(shadow->Check({kernel, r, false, false}).ok());
    EXPECT_EQ(g_copies, 0);
    r.flags = 0;
    EXPECT_TRUE(shadow->Check({kernel, r, false, false}).ok());  // the caller does not wait
    EXPECT_EQ(g_copies, 3);
    shadow.reset();  // waits for the comparison
    EXPECT_EQ(WhyNot(id), *id == 'l' ? ReasonCode::kQuarantined : ReasonCode::kAuto);
  }
  const auto counted = selector.health().ToJson()["shadow"];
  EXPECT_EQ(counted["wrong"], 1);
  EXPECT_EQ(counted["right"], 1);
  verify::copy_from_device = copy;
}

TEST_F(SelectorHealth, ManyThreadsGetRightResultsAlone) {
  selector.health().SetLimits({.breaker = {.failures = 3, .retry_s = 0.2}, .error_budget = 1 << 30});
  std::atomic<double> clock{0};
  selector.health().set_clock([&] { return clock.load(); });
  const auto shadow = verify::MakeShadow(selector);
  AddObserver(shadow);
  Configure(R"({"health": {"shadow_rate": 1}})");
  Kernel("p.fails", &Sometimes<50, 0>, {.priority = 100});
  Kernel("p.refuses", &Sometimes<20, 1>, {.priority = 99});
  Kernel("p.half", &Sometimes<60, 2>, {.priority = 98});
  Kernel("q.other", &Sometimes<1000, 3>, {.priority = 97});
  Kernel("q.nan", &Sometimes<700, 4>, {.priority = 96});
  const Operation& op = *selector.registry().Find("rms_norm");
  auto line = verify::ParseCase(op, "input=f32[3,16] weight=f32[16]");
  ASSERT_TRUE(line.ok());
  std::vector<float> wanted(48);
  {
    Request r = line->MakeRequest();
    ASSERT_TRUE(selector.Bind(r).ok());
    BindOutput(r, 0, wanted.data());
    ASSERT_TRUE(selector.Run(**selector.Select(r), r).ok());
  }
  std::atomic<int> wrong{0}, errors{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 16; ++t) {
    threads.emplace_back([&] {
      verify::Case c = *line;
      for (int i = 0; i < 6250; ++i) {
        Request r = c.MakeRequest();
        std::vector<float> out(48, 7.0f);
        if (!selector.Bind(r).ok()) continue;
        BindOutput(r, 0, out.data());
        auto plan = selector.Select(r);
        errors += !plan.ok() || !selector.Run(**plan, r).ok();
        for (size_t k = 0; k < out.size(); ++k) wrong += !(std::fabs(out[k] - wanted[k]) < 1e-5f);
        if (i % 64 == 0) {
          clock.store(clock.load() + 0.001);
          selector.health().Tick();
        }
      }
    });
  }
  for (std::thread& t : threads) t.join();
  RemoveObserver(shadow.get());
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(errors, 0);
  EXPECT_EQ(WhyNot("q.other", "input=f32[3,16] weight=f32[16]"), ReasonCode::kQuarantined);
  EXPECT_EQ(selector.health().ToJson()["quarantine"].size(), 2u);  // as many as kernels that lie
}

TEST_F(SelectorHealth, ANumericsClassCanBeHeld) {
  Kernel("fast.k", &Planted, {.priority = 100, .numerics = "bf16-p"});
  Kernel("exact.k", &Right, {.priority = 99, .numerics = "fp32"});
  g_fails = 1;
  EXPECT_EQ(Ran(), "fast.k");               // and exact.k has answered
  Configure(R"({"hold_numerics": true})");  // proves: hold_numerics
  g_fails = 1;
  EXPECT_THAT(Ran(), HasSubstr("kernel fast.k"));
  Kernel("twin.k", &Right, {.priority = 10, .numerics = "bf16-p"});
  g_fails = 1;
  EXPECT_EQ(Ran(), "fast.k");
  EXPECT_TRUE(calls.back().r.fell_back);
}

}  // namespace
}  // namespace lz
