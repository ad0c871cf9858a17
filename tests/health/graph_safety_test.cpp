// Kernels inside CUDA graph captures: what is not known to be safe, proofs, strict mode, and choices that hold until a
// capture ends.
#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>

#include "../pipeline/selector_fixture.h"
#include "pipeline/filter_health.h"

namespace lz {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr const char* kLine = "input=f32[3,64] weight=f32[64]";

int32_t Works(const lz_kernel_args*) { return 0; }
bool g_fails = false;
int32_t MayFail(const lz_kernel_args*) { return g_fails ? 7 : 0; }

class GraphSafety : public SelectorFixture {
 protected:
  GraphSafety() { g_fails = false; }
  void Kernel(const char* id, int32_t priority, bool safe, std::span<const Constraint> constraints = {}) {
    Register({.id = id,
              .operation = "norm.rms",
              .constraints = constraints,
              .priority = priority,
              .cuda_graph_safe = safe,
              .launch = &MayFail});
  }
  // The chosen kernel of a call that is captured, or the error's text. `capture`: 0 for one without a number.
  std::string Chosen(uint32_t capture = 0, const char* line = kLine) {
    Call& c = MakeCall("rms_norm", line);
    c.r.flags = LZ_FLAG_CAPTURING;
    EXPECT_TRUE(selector.Bind(c.r).ok());
    c.r.capture = capture;
    auto plan = selector.Select(c.r);
    status = plan.status().code();
    return plan.ok() ? (*plan)->kernel->id : plan.status().Text();
  }
  void Verdict(const char* id, Outcome outcome, const char* line = kLine) {
    Call& c = MakeCall("rms_norm", line);
    ASSERT_TRUE(selector.Bind(c.r).ok());
    const KernelEntry& kernel = *selector.registry().FindKernel("norm.rms", id);
    selector.health().SetGraphVerdict(kernel, c.r.device, ClassOf(c.r), outcome, "it replayed another result");
  }
  StatusCode status{};
};

struct OtherProcess : GraphSafety {
  void TestBody() override {}
  using GraphSafety::Chosen;
  using GraphSafety::Configure;
  using GraphSafety::Kernel;
  using GraphSafety::selector;
};

TEST_F(GraphSafety, UnknownIsUnsafeUnlessThePolicyOrAProofSaysOtherwise) {
  constexpr auto kNever = std::to_array<Constraint>({{"capturing", Rel::kEq, 0}});
  Kernel("declared.k", 90, true);
  Kernel("silent.k", 95, false);
  Kernel("never.k", 99, false, kNever);
  EXPECT_EQ(Chosen(), "declared.k");
  Configure(R"({"graph": {"default_graph_safe": true}})");
  EXPECT_EQ(Chosen(), "silent.k");
  Configure(R"({"graph": {"default_graph_safe": false}})");
  EXPECT_EQ(Chosen(), "declared.k");
  Verdict("silent.k", Outcome::kGraphSafe);
  Verdict("never.k", Outcome::kGraphSafe);
  EXPECT_EQ(Chosen(), "silent.k");
}

TEST_F(GraphSafety, StrictModeUsesOnlyWhatIsProven) {
  Kernel("a.k", 95, true);
  Kernel("b.k", 90, true);
  Configure(R"({"graph_strict_mode": true})");
  const std::string error = Chosen();
  EXPECT_EQ(status, StatusCode::kGraphUnsafe);
  EXPECT_THAT(error, HasSubstr("a.k (not proven on this device), b.k (not proven on this device)"));
  EXPECT_THAT(error, HasSubstr("ref.norm.rms (not declared safe)"));
  EXPECT_THAT(error, HasSubstr("layerzero.graphs.verify"));
  Verdict("b.k", Outcome::kGraphSafe);
  EXPECT_EQ(Chosen(), "b.k");
  EXPECT_THAT(Chosen(0, "input=bf16[3,64] weight=bf16[64]"), HasSubstr("b.k (not proven"));  // another class of calls
  Verdict("a.k", Outcome::kWrong);
  EXPECT_EQ(Chosen(), "b.k");
  Verdict("b.k", Outcome::kFailed);  // replaces the proof
  EXPECT_THAT(Chosen(), HasSubstr("b.k (failed_before_write: it replayed another result"));
  Verdict("b.k", Outcome::kGraphSafe);
  EXPECT_EQ(Chosen(), "b.k");
  Configure(R"({"graph_strict_mode": false})");
  EXPECT_EQ(Chosen(), "b.k");  // what failed its proof stays out
}

TEST_F(GraphSafety, AProofIsNoQuarantineAndHoldsForItsVersionAlone) {
  std::string folder = "/tmp/lz_graphs_XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  selector.health().SetLimits({.folder = folder, .build = "build 1"});
  Kernel("a.k", 95, true);
  Configure(R"({"graph_strict_mode": true})");
  Verdict("a.k", Outcome::kGraphSafe);
  const auto health = selector.health().ToJson();
  EXPECT_EQ(health["status"], "ok");
  EXPECT_EQ(health["quarantine"].size(), 0u);
  ASSERT_EQ(health["graph_safe"].size(), 1u);
  EXPECT_EQ(health["graph_safe"][0]["kernel"], "a.k");
  EXPECT_EQ(Chosen(), "a.k");
  for (const char* build : {"build 1", "build 2"}) {
    OtherProcess other;
    other.selector.health().SetLimits({.folder = folder, .build = build});
    other.Kernel("a.k", 95, true);
    other.Configure(R"({"graph_strict_mode": true})");
    other.selector.health().Begin();
    EXPECT_EQ(other.Chosen() == "a.k", build == std::string("build 1"));
  }
  Status problem;
  EXPECT_EQ(selector.health().Reset("a.*", &problem), 1u);
  EXPECT_THAT(Chosen(), HasSubstr("a.k (not proven"));
  std::filesystem::remove_all(folder);
}

TEST_F(GraphSafety, AChoiceHoldsUntilItsCaptureEnds) {
  Kernel("a.k", 90, true);
  ASSERT_EQ(Chosen(7), "a.k");
  Kernel("b.k", 95, true);
  EXPECT_EQ(Chosen(7), "a.k");
  Configure(R"({"locks": {"norm.rms": "b.k"}})");
  EXPECT_EQ(Chosen(7), "a.k");
  EXPECT_EQ(Chosen(7, "input=f32[4,64] weight=f32[64]"), "b.k");  // another call of this capture
  EXPECT_EQ(Chosen(8), "b.k");
  EXPECT_EQ(Chosen(), "b.k");
  Configure(R"({"locks": {"norm.rms": null}})");
  EXPECT_EQ(Chosen(7), "a.k");
}

TEST_F(GraphSafety, AKernelThatFailedInACaptureIsNotChosenAgain) {
  Kernel("a.k", 95, true);
  Call& c = MakeCall("rms_norm", kLine);
  c.r.flags = LZ_FLAG_CAPTURING;
  ASSERT_TRUE(Prepare(c).ok());
  c.r.capture = 7;
  g_fails = true;
  auto plan = selector.Select(c.r);
  ASSERT_TRUE(plan.ok());
  EXPECT_FALSE(selector.Run(**plan, c.r).ok());  // there is no reference for captures that could answer
  Register({.id = "c.k", .operation = "norm.rms", .priority = 99, .cuda_graph_safe = true, .launch = &Works});
  EXPECT_EQ(Chosen(7), "c.k");  // its choice was for a kernel that failed, so it is made again
}

}  // namespace
}  // namespace lz
