// The engine end to end on one operation: bind, select, run, explain, with errors that say what was wanted.
#include "engine/engine.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

namespace lz {
namespace {

struct Array {
  std::vector<float> data;
  std::vector<int64_t> shape, strides;
  lz_tensor tensor{};
  Array(std::vector<int64_t> s, float value) : shape(std::move(s)) {
    int64_t n = 1;
    strides.resize(shape.size());
    for (size_t i = shape.size(); i-- > 0;) {
      strides[i] = n;
      n *= shape[i];
    }
    data.assign(size_t(n), value);
    tensor = {data.data(), {1, 0}, int32_t(shape.size()), {2, 32, 1}, shape.data(), strides.data(), 0};
  }
};

struct RmsCall {
  Array input{{3, 64}, 2.0f}, weight{{64}, 0.5f}, output{{3, 64}, 0.0f};
  Request request{*Engine::Get().Find("rms_norm")};
  RmsCall() {
    request.tensors[0] = input.tensor;
    request.tensors[1] = weight.tensor;
  }
};

TEST(Engine, StartsWithoutMistakes) { EXPECT_TRUE(Engine::Get().startup().ok()) << Engine::Get().startup().Text(); }

TEST(Engine, RunsTheBestKernel) {
  RmsCall call;
  Engine& engine = Engine::Get();
  Status prepared = engine.Bind(call.request);
  ASSERT_TRUE(prepared.ok()) << prepared.Text();
  auto plan = engine.Select(call.request);
  ASSERT_TRUE(plan.ok()) << plan.status().Text();
  EXPECT_EQ((*plan)->kernel->id, "hwy.norm.rms");
  BindOutput(call.request, 0, call.output.data.data());
  Status run = engine.Run(**plan, call.request);
  ASSERT_TRUE(run.ok()) << run.Text();
  EXPECT_NEAR(call.output.data[5], 0.5f, 1e-5f);
}

TEST(Engine, HitsTheInlineCacheOfASite) {
  RmsCall call;
  Engine& engine = Engine::Get();
  InlineCache site;
  ASSERT_TRUE(engine.Bind(call.request).ok());
  EXPECT_EQ(engine.Lookup(site, call.request.facts), nullptr);
  auto plan = engine.Select(call.request, site);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(engine.Lookup(site, call.request.facts), *plan);
  engine.Invalidate();
  EXPECT_EQ(engine.Lookup(site, call.request.facts), nullptr);
}

TEST(Engine, SaysWhichArgumentDoesNotFit) {
  RmsCall call;
  Array wrong({65}, 1.0f);
  call.request.tensors[1] = wrong.tensor;
  Status status = Engine::Get().Bind(call.request);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.code(), StatusCode::kInvalidRequest);
  EXPECT_EQ(status.parts().field, "rms_norm: weight");
  EXPECT_EQ(status.parts().got, "[65]");
}

TEST(Engine, ExplainsEveryCandidate) {
  RmsCall call;
  auto text = Engine::Get().Explain(call.request);
  ASSERT_TRUE(text.ok());
  const auto report = nlohmann::json::parse(*text);
  EXPECT_EQ(report["kernel_id"], "hwy.norm.rms");
  EXPECT_EQ(report["operation"], "norm.rms");
  bool reference = false;
  for (const auto& c : report["candidates"]) reference |= c["kernel_id"] == "ref.norm.rms" && c["admissible"] == true;
  EXPECT_TRUE(reference);
}

TEST(Engine, CopiesAStridedInputWhereTheKernelWantsItDense) {
  RmsCall call;
  Array wide({3, 128}, 2.0f);
  wide.shape = {3, 64};
  wide.strides = {128, 2};
  call.request.tensors[0] = wide.tensor;
  Engine& engine = Engine::Get();
  ASSERT_TRUE(engine.Bind(call.request).ok());
  auto plan = engine.Select(call.request);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ((*plan)->transforms.contiguous, 1u);
  BindOutput(call.request, 0, call.output.data.data());
  ASSERT_TRUE(engine.Run(**plan, call.request).ok());
  EXPECT_NEAR(call.output.data[100], 0.5f, 1e-5f);
}

TEST(Engine, ObeysALockInAScopeOrRefusesWithIt) {
  RmsCall call;
  Engine& engine = Engine::Get();
  auto scope = engine.PolicyScope(0, R"({"locks": {"norm.rms": "ref.norm.rms"}})");
  ASSERT_TRUE(scope.ok()) << scope.status().Text();
  call.request.policy = *scope;
  ASSERT_TRUE(engine.Bind(call.request).ok());
  auto plan = engine.Select(call.request);
  ASSERT_TRUE(plan.ok()) << plan.status().Text();
  EXPECT_EQ((*plan)->kernel->id, "ref.norm.rms");
  EXPECT_TRUE((*plan)->locked);

  auto unknown = engine.PolicyScope(0, R"({"locks": {"norm.rms": "no.such.kernel"}})");
  ASSERT_TRUE(unknown.ok()) << unknown.status().Text();
  RmsCall second;
  second.request.policy = *unknown;
  ASSERT_TRUE(engine.Bind(second.request).ok());
  auto refused = engine.Select(second.request);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kNoKernel);
}

TEST(Engine, RulesDecideByShape) {  // proves: rules
  Engine& engine = Engine::Get();
  auto scope = engine.PolicyScope(
      0, R"({"rules": [{"match": {"operation": "norm.*", "hidden": ">=64"}, "deny": ["hwy.norm.rms"]}]})");
  ASSERT_TRUE(scope.ok()) << scope.status().Text();
  RmsCall call;
  call.request.policy = *scope;
  ASSERT_TRUE(engine.Bind(call.request).ok());
  auto plan = engine.Select(call.request);
  ASSERT_TRUE(plan.ok()) << plan.status().Text();
  EXPECT_EQ((*plan)->kernel->id, "ref.norm.rms");
}

}  // namespace
}  // namespace lz
