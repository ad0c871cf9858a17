// Programs and their kernels: plans follow policies and registrations, failures fall back, kernels of the host language
// and those that need dense memory give the same as any other.
#include <gmock/gmock.h>

#include <atomic>
#include <cmath>
#include <thread>

#include "pipeline/request_memory.h"
#include "program/check.h"
#include "program_fixture.h"

namespace lz {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Test kernels of norm.rms: each takes rows of one width, so that no test meets another's.
constexpr int64_t kFails = 36, kOnlyDense = 40, kHostOnly = 44, kHostFalls = 48, kAligned = 64, kLate = 52,
                  kDenseNext = 56;
template <int64_t kHidden>
inline constexpr std::array<Constraint, 1> kOf = {Constraint{"hidden", Rel::kEq, kHidden}};

lz_launch_fn Reference() {
  return Engine::Get().selector().registry().FindKernel("norm.rms", "ref.norm.rms")->spec.launch;
}
int32_t Fail(const lz_kernel_args*) { return 7; }
std::atomic<int> g_calls{0};
int32_t CountedReference(const lz_kernel_args* args) {
  ++g_calls;
  return Reference()(args);
}
int32_t DenseOnly(const lz_kernel_args* args) {
  return IsDense(args->tensors[0]) && IsDense(args->tensors[2]) ? CountedReference(args) : 9;
}
int32_t AlignedOnly(const lz_kernel_args* args) {
  const lz_tensor& t = args->tensors[0];
  return (reinterpret_cast<uintptr_t>(t.data) + t.byte_offset) % 128 == 0 ? CountedReference(args) : 9;
}

// A host language whose kernels are the reference, or fail.
bool g_host_fails = false;
void ReleaseAll(const Request& r, HostTensor* tensors) {
  for (size_t i = 0; i < r.op->num_inputs() + r.op->num_outputs(); ++i) {
    if (tensors[i].owner) tensors[i].release(tensors[i].owner);
  }
}
Status HostCall(const KernelEntry& kernel, const Request& r, const Transforms&, HostTensor* tensors) {
  ++g_calls;
  if (g_host_fails && kernel.id == "host.test.host") {
    ReleaseAll(r, tensors);
    return Status(StatusCode::kKernelFailed, {.field = kernel.id, .wanted = "a result", .got = "an exception"});
  }
  lz_tensor views[kMaxTensors];
  for (size_t i = 0; i < r.op->num_inputs() + r.op->num_outputs(); ++i) views[i] = tensors[i].view;
  lz_kernel_args args{};
  args.tensors = views, args.scalars = r.scalars.data(), args.axes = r.axes();
  const int32_t code = Reference()(&args);
  ReleaseAll(r, tensors);
  return code == 0 ? Status() : Status(StatusCode::kKernelFailed, {.field = kernel.id});
}
const HostRuntime kHost = {&HostCall, nullptr, nullptr};

class ProgramKernels : public ProgramFixture {
 protected:
  static void SetUpTestSuite() {
    const auto add = [](KernelSpec spec, std::string adapter = "") {
      spec.operation = "norm.rms", spec.priority = 100, spec.dtypes = kFloats, spec.accepts = kAcceptsAll;
      const Registry::Registration one{&spec, {}, std::move(adapter)};
      Status status = Engine::Get().selector().registry().Register({&one, 1});
      ASSERT_TRUE(status.ok()) << status.Text();
    };
    static constexpr auto kAlign =
        std::to_array<Constraint>({{"hidden", Rel::kEq, kAligned}, {"input.alignment", Rel::kGe, 7}});
    add({.id = "test.fails", .constraints = kOf<kFails>, .strides = Strides::kAny, .launch = &Fail});
    add({.id = "test.dense", .constraints = kOf<kOnlyDense>, .launch = &DenseOnly});
    add({.id = "test.aligned", .constraints = kAlign, .strides = Strides::kAny, .launch = &AlignedOnly});
    add({.id = "host.test.host", .constraints = kOf<kHostOnly>, .strides = Strides::kAny, .call = CallKind::kHost},
        "tests");
    add({.id = "fails.too", .constraints = kOf<kHostFalls>, .strides = Strides::kAny, .launch = &Fail});
    add({.id = "host.test.next", .constraints = kOf<kHostFalls>, .strides = Strides::kAny, .call = CallKind::kHost},
        "tests");
    add({.id = "a.fails", .constraints = kOf<kDenseNext>, .strides = Strides::kAny, .launch = &Fail});
    add({.id = "b.dense", .constraints = kOf<kDenseNext>, .launch = &DenseOnly});
    Engine::Get().Invalidate();
  }
  void SetUp() override {
    g_calls = 0;
    g_host_fails = false;
    engine.SetHost(&kHost);
    engine.selector().health().SetLimits({.breaker = {.failures = 1000}});
  }
  void TearDown() override { engine.SetHost(nullptr); }

  // Two norms, the first into columns of a wider value, so that its output has gaps.
  std::unique_ptr<Program> Norms(int64_t width) {
    const Operand x = Input(), wide = Rows(2 * width), y = Output(width);
    Step("rms_norm", {x}, {Part(wide, 8, {width})});
    Step("rms_norm", {Part(wide, 8, {width})}, {y});
    return Make();
  }
  static void ExpectNorms(OwnedTensor& x, OwnedTensor& y) {
    const auto in = Values(x), out = Values(y);
    const size_t width = size_t(x.shape().back());
    for (size_t row = 0; row < in.size(); row += width) {
      double square = 0;
      for (size_t i = 0; i < width; ++i) square += in[row + i] * in[row + i];
      for (size_t i = 0; i < width; ++i) {
        ASSERT_NEAR(out[row + i], in[row + i] / std::sqrt(square / double(width)), 1e-4);
      }
    }
    EXPECT_TRUE(y.GuardsIntact());
  }
  void ExpectRuns(Program& program, int64_t width, int64_t policy = 0) {
    OwnedTensor &x = Tensor({2, 3, width}, 7), &y = Tensor({2, 3, width});
    const Status status = Run(program, {&x}, {&y}, {}, 0, policy);
    ASSERT_TRUE(status.ok()) << status.Text();
    ExpectNorms(x, y);
  }
  std::vector<std::string> KernelsOf(Program& program, int64_t width, int64_t policy = 0) {
    return Kernels(program, {&Tensor({2, 3, width}, 7)}, {&Tensor({2, 3, width})}, policy);
  }
};

TEST_F(ProgramKernels, AKernelThatNeedsDenseMemoryGetsIt) {
  const auto program = Norms(kOnlyDense);
  const int64_t scope = Scope(R"({"locks": {"norm.rms": "test.dense"}})");
  EXPECT_THAT(KernelsOf(*program, kOnlyDense, scope), ElementsAre("test.dense", "test.dense"));
  ExpectRuns(*program, kOnlyDense, scope);
  EXPECT_EQ(g_calls, 2);
}

TEST_F(ProgramKernels, AKernelThatFailsFallsBack) {
  const auto program = Norms(kFails);
  EXPECT_THAT(KernelsOf(*program, kFails), ElementsAre("test.fails", "test.fails"));
  const uint64_t before = engine.selector().num_fallbacks();
  ExpectRuns(*program, kFails);
  EXPECT_EQ(engine.selector().num_fallbacks(), before + 2);
}

TEST_F(ProgramKernels, TheKernelAfterAFailedOneMayNeedDenseMemory) {
  struct OnCallersThread : Observer {
    void Ended(const KernelRun&, const Status&, double) override {}
    bool on_callers_thread() const override { return true; }
  };
  const auto program = Norms(kDenseNext);
  const int64_t scope = Scope(R"({"rules": [{"match": {"operation": "norm.rms"}, "deny": ["hwy.*", "ref.*"]}]})");
  EXPECT_THAT(KernelsOf(*program, kDenseNext, scope), ElementsAre("a.fails", "a.fails"));
  const auto observer = std::make_shared<OnCallersThread>();
  AddObserver(observer);
  ExpectRuns(*program, kDenseNext, scope);  // by no team
  RemoveObserver(observer.get());
  EXPECT_EQ(g_calls, 2);
  ExpectRuns(*program, kDenseNext, scope);
  EXPECT_EQ(g_calls, 4);
}

TEST_F(ProgramKernels, ALockedKernelThatFailsIsAnError) {
  const auto program = Norms(kFails);
  const int64_t scope = Scope(R"({"locks": {"norm.rms": "test.fails"}})");
  OwnedTensor &x = Tensor({1, 2, kFails}, 7), &y = Tensor({1, 2, kFails});
  EXPECT_EQ(Run(*program, {&x}, {&y}, {}, 0, scope).code(), StatusCode::kKernelFailed);
  ExpectRuns(*program, kFails);
}

TEST_F(ProgramKernels, AHostKernelRunsBetweenNativeOnes) {
  const Operand x = Input(), a = Rows(kHostOnly), b = Rows(kHostOnly), y = Output(kHostOnly);
  Step("cast", {x}, {a}, {{"dtype", 0}});
  Step("rms_norm", {a}, {b});
  Step("cast", {b}, {y}, {{"dtype", 0}});
  const auto program = Make();
  EXPECT_EQ(KernelsOf(*program, kHostOnly)[1], "host.test.host");
  ExpectRuns(*program, kHostOnly);
  EXPECT_EQ(g_calls, 1);
}

TEST_F(ProgramKernels, AHostKernelThatFailsFallsBack) {
  const auto program = Norms(kHostOnly);
  g_host_fails = true;
  const uint64_t before = engine.selector().num_fallbacks();
  ExpectRuns(*program, kHostOnly);
  EXPECT_EQ(g_calls, 2);
  EXPECT_EQ(engine.selector().num_fallbacks(), before + 2);
}

TEST_F(ProgramKernels, ANativeKernelMayFallBackToAHostOne) {
  const auto program = Norms(kHostFalls);
  EXPECT_THAT(KernelsOf(*program, kHostFalls), ElementsAre("fails.too", "fails.too"));
  ExpectRuns(*program, kHostFalls);
  EXPECT_EQ(g_calls, 2);
}

TEST_F(ProgramKernels, WithoutAHostLanguageItsKernelsAreAnError) {
  engine.SetHost(nullptr);
  const auto program = Norms(kHostOnly);
  OwnedTensor &x = Tensor({1, 2, kHostOnly}, 7), &y = Tensor({1, 2, kHostOnly});
  const Status status = Run(*program, {&x}, {&y});
  EXPECT_EQ(status.code(), StatusCode::kNotInstalled);
  EXPECT_THAT(status.Text(), HasSubstr("host.test.host"));
}

// What was chosen at a size once is found by the team itself: leaving it at every step of the first run after a change
// of size costs a prefill after a decode half its time.
TEST_F(ProgramKernels, AKnownSizeIsRunByOneTeam) {
  struct Pool {
    int runs = 0;
  } pool;
  const lz_parallel parallel{[](void* self, int64_t begin, int64_t end, int64_t, lz_parallel_body body, void* context) {
                               ++static_cast<Pool*>(self)->runs;
                               body(begin, end, context);
                             },
                             &pool, 2};
  const Operand x = Input(), out = Output(16), weight = Weight(Tensor({16, 16}, 3));
  Operand last = x;
  for (int s = 0; s < 8; ++s) {
    const Operand next = s == 7 ? out : Rows(16);
    Step("linear", {last, weight}, {next});  // its kernels differ by the number of rows
    last = next;
  }
  const auto program = Make();
  ASSERT_TRUE(program);
  OwnedTensor& few = Tensor({1, 1, 16}, 1);
  OwnedTensor& many = Tensor({1, 512, 16}, 2);
  OwnedTensor& of_few = Tensor({1, 1, 16});
  OwnedTensor& of_many = Tensor({1, 512, 16});
  const auto runs = [&](OwnedTensor& in, OwnedTensor& result) {
    pool.runs = 0;
    EXPECT_TRUE(Run(*program, {&in}, {&result}, {}, 0, 0, &parallel).ok());
    return pool.runs;
  };
  runs(few, of_few), runs(many, of_many);
  EXPECT_EQ(runs(few, of_few), 1);
  EXPECT_EQ(runs(many, of_many), 1);
}

// What is remembered of the last run's tensors does not outlive their addresses.
TEST_F(ProgramKernels, TheAddressesOfEachRunDecide) {
  const Operand x = Input(), y = Output(kAligned);
  Step("rms_norm", {x}, {y});
  const auto program = Make();
  OwnedTensor &memory = Tensor({1, 4, kAligned}, 7), &out = Tensor({1, 2, kAligned});
  auto in = Given({&memory});
  const auto outputs = Given({&out});
  std::vector<int64_t> shape = {1, 2, kAligned};
  in[0].shape = shape.data();
  const auto misaligned = reinterpret_cast<uintptr_t>(in[0].data) % 128;
  const int64_t scope = Scope(R"({"locks": {"norm.rms": "test.aligned"}})");
  const RunArguments arguments{.batch = 1, .length = 2, .inputs = in, .outputs = outputs, .policy = scope};
  for (int i = 0; i < 3; ++i) {
    in[0].byte_offset = misaligned;
    EXPECT_EQ(program->Run(arguments).Text(), "ok");
    in[0].byte_offset = misaligned + 64;
    EXPECT_EQ(program->Run(arguments).code(), StatusCode::kNoKernel);
  }
}

TEST_F(ProgramKernels, ScopesOfRunsAreObeyed) {
  const auto program = Norms(24);
  const int64_t scope = Scope(R"({"locks": {"norm.rms": "ref.norm.rms"}})");
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT(KernelsOf(*program, 24), ElementsAre("hwy.norm.rms", "hwy.norm.rms"));
    ExpectRuns(*program, 24);
    EXPECT_THAT(KernelsOf(*program, 24, scope), ElementsAre("ref.norm.rms", "ref.norm.rms"));
    ExpectRuns(*program, 24, scope);
  }
}

TEST_F(ProgramKernels, PolicyChangesAndRegistrationsBetweenRunsAreSeen) {
  const auto program = Norms(kLate);
  ExpectRuns(*program, kLate);
  ASSERT_TRUE(engine.Configure(R"({"locks": {"norm.rms": "ref.norm.rms"}})").ok());
  EXPECT_THAT(KernelsOf(*program, kLate), ElementsAre("ref.norm.rms", "ref.norm.rms"));
  ASSERT_TRUE(engine.Configure(R"({"locks": {"norm.rms": null}})").ok());
  EXPECT_THAT(KernelsOf(*program, kLate), ElementsAre("hwy.norm.rms", "hwy.norm.rms"));

  KernelSpec spec{.id = "host.test.late", .operation = "norm.rms", .constraints = kOf<kLate>};
  spec.strides = Strides::kAny, spec.priority = 100, spec.call = CallKind::kHost, spec.dtypes = kFloats;
  spec.accepts = kAcceptsAll;
  const Registry::Registration one{&spec, {}, "late"};
  ASSERT_TRUE(engine.selector().registry().Register({&one, 1}).ok());
  engine.Invalidate();
  EXPECT_THAT(KernelsOf(*program, kLate), ElementsAre("host.test.late", "host.test.late"));
  ExpectRuns(*program, kLate);
  EXPECT_EQ(g_calls, 2);
  EXPECT_EQ(engine.Unregister("late"), 1u);
  EXPECT_THAT(KernelsOf(*program, kLate), ElementsAre("hwy.norm.rms", "hwy.norm.rms"));
  ExpectRuns(*program, kLate);
  EXPECT_EQ(g_calls, 2);
}

TEST_F(ProgramKernels, ThreadsRunWhileThePolicyChanges) {
  const auto program = Norms(24);
  std::atomic<bool> stop{false};
  std::atomic<int> failed{0}, runs{0};
  std::vector<std::pair<OwnedTensor*, OwnedTensor*>> owned;
  for (int t = 0; t < 3; ++t) owned.emplace_back(&Tensor({1, 5, 24}, uint32_t(t + 1)), &Tensor({1, 5, 24}));
  std::vector<std::thread> threads;
  for (const auto& [x, y] : owned) {
    threads.emplace_back([&, x = x, y = y] {
      do {
        failed += !Run(*program, {x}, {y}).ok();
        ++runs;
      } while (!stop);
    });
  }
  for (int i = 0; i < 30 || runs < 100; ++i) {
    const char* kernel = i % 2 ? R"({"locks": {"norm.rms": null}})" : R"({"locks": {"norm.rms": "ref.norm.rms"}})";
    EXPECT_TRUE(engine.Configure(kernel).ok());
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(engine.Configure(R"({"locks": {"norm.rms": null}})").ok());
  EXPECT_EQ(failed, 0);
  for (const auto& [x, y] : owned) ExpectNorms(*x, *y);
}

}  // namespace
}  // namespace lz
