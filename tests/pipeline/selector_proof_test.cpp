// Libraries of host kernels are tried before a choice; references that answer in place of other kernels are counted.
#include <gmock/gmock.h>

#include <functional>
#include <thread>
#include <utility>

#include "tests/pipeline/selector_fixture.h"

namespace lz {
namespace {

using State = Backend::State;
using testing::ElementsAre;
using testing::IsEmpty;

class SelectorProof : public SelectorFixture {
 protected:
  void SetUp() override {
    selector.set_prover([this](const Backend& b, const std::vector<std::string>& adapters, std::string* error) {
      tried.push_back(b.name);
      seen = adapters;
      if (const auto once = std::exchange(during, {})) once();
      if (answer == State::kFailed) *error = "no such symbol";
      return answer;
    });
  }
  Backend& AddHost(const char* backend, KernelSpec spec, Availability availability = {}) {
    Backend& b = selector.registry().AddBackend(backend, "");
    spec.operation = "norm.rms", spec.strides = Strides::kAny, spec.call = CallKind::kHost;
    spec.dtypes = kFloats, spec.accepts = kAcceptsAll;
    const Registry::Registration one{&spec, std::move(availability), "m:" + std::string(spec.id), &b};
    EXPECT_TRUE(selector.registry().Register({&one, 1}).ok());
    return b;
  }
  Request Norm() {
    Call& c = MakeCall("rms_norm", "input=f32[2,64] weight=f32[64]");
    EXPECT_TRUE(selector.Bind(c.r).ok());
    return c.r;
  }
  std::string Chosen() {
    Request r = Norm();
    auto plan = selector.Select(r);
    EXPECT_TRUE(plan.ok()) << plan.status().Text();
    return plan.ok() ? (*plan)->kernel->id : "";
  }

  State answer = State::kProven;
  std::vector<std::string> tried, seen;
  std::function<void()> during;
};

TEST_F(SelectorProof, TheWinnersLibraryIsTriedOnce) {
  AddHost("best", {.id = "best.k", .priority = 100});
  AddHost("other", {.id = "other.k", .priority = 1});
  AddHost("absent", {.id = "absent.k", .priority = 100}, {.installed = false});
  EXPECT_THAT(tried, IsEmpty());
  EXPECT_EQ(Chosen(), "best.k");
  EXPECT_EQ(Chosen(), "best.k");
  EXPECT_THAT(tried, ElementsAre("best"));
  EXPECT_THAT(seen, ElementsAre("m:best.k"));
}

TEST_F(SelectorProof, ALibraryThatFailsIsRefusedWithItsError) {
  Backend& broken = AddHost("broken", {.id = "broken.k", .priority = 100});
  answer = State::kFailed;
  const EpochValues before = selector.epochs().Current();
  EXPECT_EQ(Chosen(), "hwy.norm.rms");
  EXPECT_NE(selector.epochs().Current(), before);
  EXPECT_EQ(Chosen(), "hwy.norm.rms");
  EXPECT_THAT(tried, ElementsAre("broken"));
  EXPECT_EQ(ProofText(broken), "no such symbol");
  const SelectionReport report = Explain(MakeCall("rms_norm", "input=f32[2,64] weight=f32[64]"));
  EXPECT_TRUE(Has(Of(report, "broken.k"), ReasonCode::kBackendImportFailed));
}

TEST_F(SelectorProof, WhatCannotBeTriedNowIsNotRemembered) {
  AddHost("later", {.id = "later.k", .priority = 100});
  answer = State::kUnproven;
  EXPECT_EQ(Chosen(), "hwy.norm.rms");
  answer = State::kProven;
  EXPECT_EQ(Chosen(), "later.k");
  EXPECT_THAT(tried, ElementsAre("later", "later"));
}

TEST_F(SelectorProof, WithoutAHostLanguageNothingOfItIsChosen) {
  selector.set_prover({});
  AddHost("host", {.id = "host.k", .priority = 100});
  EXPECT_EQ(Chosen(), "hwy.norm.rms");
}

TEST_F(SelectorProof, ExplainTriesWhatMayRunAndASimulatedDeviceNothing) {
  AddHost("a", {.id = "a.k", .priority = 100});
  AddHost("b", {.id = "b.k", .priority = 1});
  AddHost("cuda", {.id = "cuda.k", .platform = Platform::kCuda});
  Call& c = MakeCall("rms_norm", "input=f32[2,64] weight=f32[64]");
  auto device = selector.context().FindByName("zen5");
  ASSERT_TRUE(device.ok());
  c.r.device = *device;
  const SelectionReport simulated = Explain(c);
  EXPECT_TRUE(Of(simulated, "a.k").admissible());
  EXPECT_THAT(tried, IsEmpty());
  Explain(MakeCall("rms_norm", "input=f32[2,64] weight=f32[64]"));
  EXPECT_THAT(tried, ElementsAre("a", "b"));
}

// The probe calls the operation itself, as another thread does meanwhile: nobody waits for the selection.
TEST_F(SelectorProof, NothingOfTheEngineIsHeldWhileALibraryIsTried) {
  AddHost("nested", {.id = "nested.k", .priority = 100});
  std::string inner, beside;
  during = [&] {
    answer = State::kUnproven;
    inner = Chosen();
    std::thread([&] { beside = Chosen(); }).join();
    answer = State::kProven;
  };
  EXPECT_EQ(Chosen(), "nested.k");
  EXPECT_EQ(inner, "hwy.norm.rms");
  EXPECT_EQ(beside, "hwy.norm.rms");
  EXPECT_EQ(Chosen(), "nested.k");
}

TEST_F(SelectorProof, ALibraryOfAFallbackIsTriedToo) {
  AddHost("ref", {.id = "host.reference", .priority = 99, .reference = true});
  answer = State::kFailed;
  Request r = Norm();
  auto plan = selector.Select(r);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ((*plan)->fallback->id, "ref.norm.rms");
  EXPECT_THAT(tried, ElementsAre("ref"));
}

// ---- references

TEST_F(SelectorProof, AReferenceIsCountedWhereAnotherKernelShouldHaveBeen) {
  AddHost("absent", {.id = "absent.k"}, {.installed = false});
  AddHost("narrow", {.id = "narrow.k", .platform = Platform::kCuda}, {.installed = false});
  const auto calls = [&] {
    auto plan = Run(MakeCall("rms_norm", "input=f32[2,64] weight=f32[64]"));
    EXPECT_TRUE(plan.ok()) << plan.status().Text();
    return selector.reference_uses().Read();
  };
  EXPECT_THAT(calls(), IsEmpty());
  Configure(R"({"rules": [{"match": {"operation": "norm.rms"}, "deny": ["hwy.*"]}]})");
  calls();
  const std::vector<ReferenceUse> uses = calls();
  ASSERT_EQ(uses.size(), 1u);
  EXPECT_EQ(uses[0].kernel->id, "ref.norm.rms");
  EXPECT_EQ(uses[0].platform, Platform::kCpu);
  EXPECT_EQ(uses[0].calls, 2u);
  EXPECT_THAT(uses[0].libraries, ElementsAre("absent"));  // narrow.k is for another device
}

TEST_F(SelectorProof, AReferenceThatWasAskedForIsNoFallback) {
  for (const char* policy : {R"({"locks": {"norm.rms": "ref.norm.rms"}})", R"({"enabled": false})"}) {
    Configure(policy);
    auto plan = Run(MakeCall("rms_norm", "input=f32[2,64] weight=f32[64]"));
    ASSERT_TRUE(plan.ok());
    EXPECT_EQ((*plan)->kernel->id, "ref.norm.rms");
    EXPECT_FALSE((*plan)->uses_fallback()) << policy;
  }
  EXPECT_THAT(selector.reference_uses().Read(), IsEmpty());
}

// ---- layouts

// The adapter of a host kernel gets the layout: dense tensors of either are served, in the layout that they have.
TEST_F(SelectorProof, AContiguousHostKernelServesEveryLayout) {
  const char* const square = "query=f32[1,4,4,8] key=f32[1,4,4,8] value=f32[1,4,4,8]";
  KernelSpec spec{.id = "host.dense", .operation = "attention.standard.prefill", .dtypes = kFloats};
  spec.accepts = kAcceptsAll, spec.call = CallKind::kHost, spec.priority = 100;
  const Registry::Registration one{&spec, {}, "m:dense"};
  ASSERT_TRUE(selector.registry().Register({&one, 1}).ok());
  for (int32_t layout : {0, 1}) {
    const SelectionReport report = Explain(MakeCall("attention", square, layout));
    EXPECT_TRUE(Of(report, "host.dense").admissible()) << layout;
  }
}

}  // namespace
}  // namespace lz
