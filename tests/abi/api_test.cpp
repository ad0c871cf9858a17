// The C++ API end to end: names, prepared calls, errors, explanations, policies.
#include <gtest/gtest.h>

#include <vector>

#include "layerzero/layerzero.h"

namespace {
namespace lz = layerzero;

struct Rms {
  lz::Result<lz::Api> api = lz::Api::Get();
  lz::Result<lz::Operation> op = api->Find("rms_norm");
  std::vector<float> x = std::vector<float>(3 * 64, 2), w = std::vector<float>(64, 0.5f),
                     out = std::vector<float>(3 * 64);
  lz::TensorRef input{x.data(), {3, 64}}, weight{w.data(), {64}}, output{out.data(), {3, 64}};
};

TEST(Api, CallsByName) {
  Rms r;
  const lz::Status status = (*r.op)({{"input", r.input}, {"weight", r.weight}, {"output", r.output}});
  ASSERT_TRUE(status.ok()) << status.text();
  EXPECT_NEAR(r.out[7], 0.5f, 1e-5f);
  EXPECT_EQ(r.op->name(), "rms_norm");
}

TEST(Api, TakesScalarsByNameAndKind) {
  Rms r;
  const lz::Status status =
      (*r.op)({{"input", r.input}, {"weight", r.weight}, {"weight_offset", 1}, {"output", r.output}});
  ASSERT_TRUE(status.ok()) << status.text();
  EXPECT_NEAR(r.out[7], 1.5f, 1e-5f);
  EXPECT_EQ((*r.op)({{"input", r.input}, {"eps", "small"}, {"output", r.output}}).code(), LZ_WRONG_TYPE);
  EXPECT_EQ((*r.op)({{"input", 3}, {"output", r.output}}).code(), LZ_WRONG_TYPE);
  EXPECT_EQ((*r.op)({{"input", r.input}, {"epsilon", 1e-5}, {"output", r.output}}).field(), "rms_norm: epsilon");
}

TEST(Api, PreparedCallsFollowTheirArgumentsAndThePolicy) {
  Rms r;
  auto call = r.op->Prepare({{"input", r.input}, {"weight", r.weight}, {"output", r.output}});
  ASSERT_TRUE(call.ok());
  for (int64_t rows = 1; rows <= 3; ++rows) {
    std::fill(r.x.begin(), r.x.end(), float(rows));
    std::fill(r.out.begin(), r.out.end(), -1.0f);
    ASSERT_TRUE(call->Set("input", lz::TensorRef(r.x.data(), {rows, 64})).ok());
    ASSERT_TRUE(call->Set("output", lz::TensorRef(r.out.data(), {rows, 64})).ok());
    const lz::Status status = call->Run();
    ASSERT_TRUE(status.ok()) << status.text();
    EXPECT_NEAR(r.out[size_t(rows) * 64 - 1], 0.5f, 1e-5f);
    if (rows < 3) {
      EXPECT_EQ(r.out[size_t(rows) * 64], -1.0f);
    }
  }
  auto kernel = call->KernelId();
  ASSERT_TRUE(kernel.ok());
  EXPECT_EQ(*kernel, "hwy.norm.rms");
  auto scope = r.api->PolicyScope(R"({"locks": {"norm.rms": "ref.norm.rms"}})");
  ASSERT_TRUE(scope.ok()) << scope.status().text();
  call->SetPolicy(*scope);
  kernel = call->KernelId();
  ASSERT_TRUE(kernel.ok());
  EXPECT_EQ(*kernel, "ref.norm.rms");
  ASSERT_TRUE(call->Run().ok());
}

TEST(Api, SaysWhichOutputToAllocate) {
  Rms r;
  auto call = r.op->Prepare({{"input", r.input}});
  ASSERT_TRUE(call.ok());
  auto shape = call->OutputShape("output");
  ASSERT_TRUE(shape.ok()) << shape.status().text();
  EXPECT_EQ(shape->ndim(), 2);
  EXPECT_EQ(shape->NumElements(), 192);
  EXPECT_EQ(call->OutputShape("nothing").status().code(), LZ_UNKNOWN_NAME);
  const lz::Status missing = call->Run();  // no output given
  EXPECT_EQ(missing.code(), LZ_INVALID_REQUEST);
  EXPECT_EQ(missing.field(), "rms_norm: output");
}

TEST(Api, RefusesWhatDoesNotFit) {
  Rms r;
  EXPECT_EQ(r.api->Find("no_such_operation").status().code(), LZ_UNKNOWN_NAME);
  const lz::TensorRef deep(r.x.data(), lz::kF32, {1, 1, 1, 1, 1, 1, 1, 1, 1});
  EXPECT_EQ((*r.op)({{"input", deep}, {"output", r.output}}).code(), LZ_INVALID_REQUEST);
  EXPECT_EQ((*r.op)({{"input", r.input}, {"weight", deep}, {"output", r.output}}).code(), LZ_INVALID_REQUEST);
  EXPECT_EQ((*r.op)({{"input", r.input}, {"output", r.weight}}).field(), "rms_norm: output");
  lz::TensorRef elsewhere(r.out.data(), lz::kF32, {3, 64}, {}, {2, 0});
  EXPECT_EQ((*r.op)({{"input", r.input}, {"output", elsewhere}}).field(), "rms_norm: output");
  EXPECT_EQ(r.api->Configure("{\"no_such_key\": 1}").code(), LZ_CONFIG);
  EXPECT_FALSE(r.api->LoadConfig("/nonexistent.yaml").ok());
}

TEST(Api, ExplainsAndListsContracts) {
  Rms r;
  auto json = r.op->Explain({{"input", r.input}});
  ASSERT_TRUE(json.ok()) << json.status().text();
  EXPECT_NE(json->find("hwy.norm.rms"), std::string::npos);
  EXPECT_FALSE(r.op->Explain({{"input", r.input}}, "no_such_device").ok());
  EXPECT_NE(r.api->Contracts().find("\"rms_norm\""), std::string::npos);
}

}  // namespace
