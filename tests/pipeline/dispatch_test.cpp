// Dispatch: fallbacks with workspace and transforms, strict mode told to kernels, headroom, debug mode.
#include <cmath>
#include <cstring>
#include <limits>

#include "core/view.h"
#include "selector_fixture.h"

namespace lz {
namespace {

constexpr const char* kCall = "input=f32[3,64] weight=f32[64]";
constexpr const char* kStrided = "input=f32[3,64]@transposed weight=f32[64]";

uint64_t g_bytes = 0;
uint32_t g_flags = 0;
int g_ran = 0;
bool g_dense = false;
uint64_t Bytes(const lz_kernel_args*) { return g_bytes; }
int32_t Fails(const lz_kernel_args*) { return 7; }
int32_t Zeros(const lz_kernel_args* args) {
  ++g_ran;
  g_flags = args->flags;
  const lz_tensor& x = args->tensors[0];
  g_dense = x.strides[1] == 1 && x.strides[0] == x.shape[1];
  if (args->workspace_bytes != g_bytes) return 8;
  if (g_bytes) std::memset(args->workspace, 1, g_bytes);
  const View out(args->tensors[2]);
  for (int64_t i = 0; i < out.numel(); ++i) out.Store(i, 0);
  return 0;
}
int32_t Overruns(const lz_kernel_args* args) {
  std::memset(args->workspace, 1, args->workspace_bytes + 8);
  return Zeros(args);
}
int32_t OneNan(const lz_kernel_args* args) {
  Zeros(args);
  View(args->tensors[2]).Store(5, std::nan(""));
  return 0;
}

class DispatchTest : public SelectorFixture {
 protected:
  DispatchTest() { g_bytes = 0, g_flags = 0, g_ran = 0, g_dense = false; }
  void Kernel(const char* id, lz_launch_fn launch, KernelSpec more = {}) {
    more.id = id;
    more.operation = "norm.rms";
    more.launch = launch;
    Register(more);
  }
  std::string Ran(const char* line = kCall) {
    auto plan = Run(MakeCall("rms_norm", line));
    return plan.ok() ? (*plan)->kernel->id : plan.status().Text();
  }
};

TEST_F(DispatchTest, AFallbackGetsWorkspaceAndCopies) {
  g_bytes = 4096;
  Kernel("bad.k", &Fails, {.priority = 100, .workspace = &Bytes});
  Kernel("own.next", &Zeros, {.priority = 99, .workspace = &Bytes});
  Call& c = MakeCall("rms_norm", kStrided);
  auto plan = Run(c);
  ASSERT_TRUE(plan.ok()) << plan.status().Text();
  EXPECT_TRUE(c.r.fell_back);
  EXPECT_TRUE(g_dense);
  EXPECT_EQ(g_ran, 1);
  EXPECT_EQ(selector.num_fallbacks(), 1u);
}

TEST_F(DispatchTest, WhereAllFailTheFirstIsNamed) {
  Configure(R"({"allow_sources": ["bad"]})");
  Kernel("bad.k", &Fails, {.priority = 100});
  Kernel("bad.reference", &Fails, {.priority = 100, .reference = true});
  EXPECT_NE(Ran().find("kernel bad.k"), std::string::npos);
}

// ---- what a failed kernel may have written

// A call of each operation that writes its inputs.
constexpr const char* kWriting[][2] = {
    {"causal_conv1d", "input=f32[2,5,6] weight=f32[6,4] state=f32[2,6,4]"},
    {"gated_delta_rule",
     "query=f32[1,3,2,4] key=f32[1,3,2,4] value=f32[1,3,2,4] g=f32[1,3,2] beta=f32[1,3,2] state=f32[1,2,4,4]"},
    {"kv_append_paged",
     "key_cache=f32[4,8,2,16] value_cache=f32[4,8,2,16] key=f32[5,2,16] value=f32[5,2,16] slots=i64[5]{0,1,9,31,16}"},
    {"kv_rope_append_paged",
     "query=f32[5,4,16] key=f32[5,2,16] value=f32[5,2,16] cos=f32[5,16] sin=f32[5,16] key_cache=f32[4,8,2,16] "
     "value_cache=f32[4,8,2,16] slots=i64[5]{0,1,9,31,16}"},
    {"kv_compact", "key_cache=f32[4,2,1,4] value_cache=f32[4,2,1,4] moves=i64[2,2]{0,3,1,2}"},
    {"kv_block_table_update", "block_tables=i32[2,3] updates=i64[2,3]{0,1,7,1,2,5}"},
};
int32_t Refuses(const lz_kernel_args*) { return LZ_LAUNCH_REFUSED; }

TEST_F(DispatchTest, EveryOperationThatWritesItsInputsIsAmongTheCalls) {
  for (const auto& op : selector.registry().operations()) {
    const bool known = std::ranges::any_of(kWriting, [&](const auto& call) { return op->name() == call[0]; });
    EXPECT_EQ(known, op->mutated_inputs() != 0) << op->name();
  }
}

TEST_F(DispatchTest, NoFallbackAnswersOverInputsThatWerePerhapsWritten) {
  for (const auto& [name, line] : kWriting) {
    SCOPED_TRACE(name);
    const Operation& op = *selector.registry().Find(name);
    const std::string operation(op.contract().variants[0].id), id = "half." + operation;
    Register({.id = id,
              .operation = operation,
              .dtypes = ~DTypeMask{0},
              .strides = Strides::kAny,
              .priority = 100,
              .launch = &Fails});
    const uint64_t before = selector.num_fallbacks();
    Call& c = MakeCall(name, line);
    ASSERT_TRUE(Prepare(c).ok());
    auto plan = selector.Select(c.r);
    ASSERT_TRUE(plan.ok()) << plan.status().Text();
    ASSERT_EQ((*plan)->kernel->id, id);
    ASSERT_NE((*plan)->fallback, nullptr);
    const Status status = selector.Run(**plan, c.r);
    EXPECT_EQ(status.code(), StatusCode::kKernelFailed);
    EXPECT_NE(status.Text().find("kernel " + id), std::string::npos) << status.Text();
    EXPECT_NE(status.Text().find(" may have been written"), std::string::npos) << status.Text();
    EXPECT_EQ(selector.num_fallbacks(), before);
  }
}

TEST_F(DispatchTest, AKernelThatRefusesBeforeItWritesIsAnsweredFor) {
  for (const auto& [name, line] : kWriting) {
    SCOPED_TRACE(name);
    Call& right = MakeCall(name, line);
    ASSERT_TRUE(Run(right).ok());
    const Operation& op = *selector.registry().Find(name);
    const std::string operation(op.contract().variants[0].id), id = "refuses." + operation;
    Register({.id = id,
              .operation = operation,
              .dtypes = ~DTypeMask{0},
              .strides = Strides::kAny,
              .priority = 100,
              .launch = &Refuses});
    const uint64_t before = selector.num_fallbacks();
    Call& c = MakeCall(name, line);
    auto plan = Run(c);
    ASSERT_TRUE(plan.ok()) << plan.status().Text();
    EXPECT_EQ((*plan)->kernel->id, id);
    EXPECT_TRUE(c.r.fell_back);
    EXPECT_EQ(selector.num_fallbacks(), before + 1);
    for (size_t i = 0; i < op.num_inputs(); ++i) {
      const lz_tensor &got = c.r.tensors[i], &want = right.r.tensors[i];
      if (got.ndim < 0 || !(op.mutated_inputs() >> i & 1)) continue;
      const View a(got), b(want);
      for (int64_t k = 0; k < a.numel(); ++k) ASSERT_NEAR(a.Load(k), b.Load(k), 1e-5) << op.input(i).name << " " << k;
    }
  }
}

TEST_F(DispatchTest, ALockedKernelThatRefusesIsNamed) {
  Kernel("no.k", &Refuses, {.priority = 100});
  Configure(R"({"locks": {"norm.rms": "no.k"}})");
  auto plan = Run(MakeCall("rms_norm", kCall));
  EXPECT_EQ(plan.status().code(), StatusCode::kKernelRefused);
  EXPECT_NE(plan.status().Text().find("kernel no.k"), std::string::npos) << plan.status().Text();
}

TEST_F(DispatchTest, AFallbackAfterARefusalThatFailsIsWhatIsNamed) {
  Configure(R"({"allow_sources": ["no"]})");
  Kernel("no.k", &Refuses, {.priority = 100});
  Kernel("bad.reference", &Fails, {.priority = 100, .reference = true});
  EXPECT_NE(Ran().find("kernel bad.reference"), std::string::npos);
}

// An output that shares memory with an input: the fallback would read what the kernel has half written.
TEST_F(DispatchTest, AnOutputInAnInputsMemoryIsLikeAWrittenInput) {
  Kernel("half.k", &Fails, {.strides = Strides::kAny, .priority = 100});
  for (const bool same : {false, true}) {
    Call& c = MakeCall("rms_norm", kCall);
    ASSERT_TRUE(Prepare(c).ok());
    if (same) BindOutput(c.r, 0, c.r.tensors[0].data);
    auto plan = selector.Select(c.r);
    ASSERT_TRUE(plan.ok());
    const uint64_t before = selector.num_fallbacks();
    const Status status = selector.Run(**plan, c.r);
    EXPECT_EQ(status.ok(), !same) << status.Text();
    EXPECT_EQ(selector.num_fallbacks(), before + !same);
    const bool says = status.Text().find("input may have been written") != std::string::npos;
    EXPECT_EQ(says, same) << status.Text();
  }
}

TEST_F(DispatchTest, KernelsAreToldOfStrictMode) {
  Kernel("a.k", &Zeros, {.priority = 100});
  EXPECT_EQ(Ran(), "a.k");
  EXPECT_EQ(g_flags, 0u);
  Configure(R"({"strict_mode": true})");
  EXPECT_EQ(Ran(), "a.k");
  EXPECT_EQ(g_flags, LZ_KERNEL_STRICT);
}

// ---- memory

constexpr int64_t kMiB = 1 << 20;

TEST_F(DispatchTest, AWorkspaceThatBreaksTheHeadroomIsRefused) {
  g_bytes = 64 * kMiB;
  Kernel("large.k", &Zeros, {.priority = 100, .workspace = &Bytes});
  selector.set_free_memory([] { return 2000 * kMiB; });
  EXPECT_EQ(Ran(), "large.k");
  selector.set_free_memory([] { return (1024 + 63) * kMiB; });
  const SelectionReport report = Explain(MakeCall("rms_norm", kCall));
  EXPECT_TRUE(Has(Of(report, "large.k"), ReasonCode::kMemoryHeadroomExceeded));
  EXPECT_EQ(report.plan->kernel->id, "hwy.norm.rms");
  Configure(R"({"memory_headroom_mb": 0})");
  EXPECT_EQ(Explain(MakeCall("rms_norm", kCall)).plan->kernel->id, "large.k");
  selector.set_free_memory([] { return 70 * kMiB; });  // 64 of 70 is more than its share
  EXPECT_EQ(Explain(MakeCall("rms_norm", kCall)).plan->kernel->id, "hwy.norm.rms");
}

TEST_F(DispatchTest, ACachedChoiceWhoseCallHasGrownGivesWay) {
  g_bytes = 2 * kMiB;
  Kernel("growing.k", &Zeros, {.priority = 100, .workspace = &Bytes});
  selector.set_free_memory([] { return 1100 * kMiB; });
  EXPECT_EQ(Ran(), "growing.k");
  g_bytes = 512 * kMiB;  // the same class of calls
  Call& grown = MakeCall("rms_norm", kCall);
  ASSERT_TRUE(Prepare(grown).ok());
  auto plan = selector.Select(grown.r);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ((*plan)->kernel->id, "growing.k");
  const int before = g_ran;
  EXPECT_TRUE(selector.Run(**plan, grown.r).ok());
  EXPECT_EQ(g_ran, before);  // another one has run

  Configure(R"({"locks": {"norm.rms": "growing.k"}})");
  EXPECT_NE(Ran().find("norm.rms"), std::string::npos);  // a locked one raises
}

TEST_F(DispatchTest, TheSmallestWorkspaceRunsWhereNoneFits) {
  g_bytes = 512 * kMiB;
  Kernel("large.k", &Zeros, {.priority = 100, .workspace = &Bytes});
  Kernel("small.k", &Zeros, {.priority = 1, .workspace = [](const lz_kernel_args*) { return uint64_t(2 * kMiB); }});
  Configure(
      R"({"rules": [{"match": {"operation": "norm.rms"}, "deny": ["hwy.*", "ref.*"]}], "fallback_enabled": false})");
  selector.set_free_memory([] { return kMiB; });
  const SelectionReport report = Explain(MakeCall("rms_norm", kCall));
  EXPECT_TRUE(Has(Of(report, "large.k"), ReasonCode::kMemoryHeadroomExceeded));
  ASSERT_GE(report.winner, 0);
  EXPECT_EQ(report.plan->kernel->id, "small.k");
}

// ---- debug mode

TEST_F(DispatchTest, DebugModeNamesAKernelThatWritesBeyondItsWorkspace) {
  g_bytes = 128;
  Kernel("over.k", &Overruns, {.priority = 100, .workspace = &Bytes});
  Configure(R"({"debug": true})");  // proves: debug
  const std::string text = Ran();
  EXPECT_NE(text.find("kernel over.k"), std::string::npos) << text;
  EXPECT_NE(text.find("workspace of 128 bytes"), std::string::npos) << text;
}
TEST_F(DispatchTest, DebugModeNamesAKernelThatMakesNans) {
  Kernel("nan.k", &OneNan, {.priority = 100});
  EXPECT_EQ(Ran(), "nan.k");
  Configure(R"({"debug": true})");
  const std::string text = Ran();
  EXPECT_NE(text.find("kernel nan.k"), std::string::npos) << text;
  EXPECT_NE(text.find("element 5"), std::string::npos) << text;
  EXPECT_EQ(Ran("input=f32[3,64]@nan weight=f32[64]"), "nan.k");  // NaN in, NaN out
}
TEST_F(DispatchTest, DebugModeAcceptsWhatIsRight) {
  Configure(R"({"debug": true})");
  EXPECT_EQ(Ran(), "hwy.norm.rms");
  EXPECT_EQ(Ran(kStrided), "hwy.norm.rms");
}

}  // namespace
}  // namespace lz
