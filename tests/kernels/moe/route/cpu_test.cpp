// cpu.moe.route: the reference's experts and weights bit for bit, by every rule, whatever ties, NaN and infinities.
#include <gtest/gtest.h>

#include <limits>

#include "ops/moe/route.h"
#include "tests/kernels/call.h"

namespace lz::kernels {
extern const KernelFamily kernels_moe_route_cpu, ops_moe_route_ref;
}  // namespace lz::kernels

namespace lz {
namespace {
using ops::moe_route::kMax, ops::moe_route::kTop2Sum;
using ops::moe_route::kSoftmax, ops::moe_route::kSigmoid, ops::moe_route::kSqrtSoftplus, ops::moe_route::kSparsemixer;
using namespace lz::testing_call;

struct Rule {
  int64_t experts, k, scoring = kSoftmax, groups = 1, top_groups = 1, group_score = kMax;
  bool renormalize = false;
  double min_sum = 0, jitter = 0;

  std::vector<lz_scalar> scalars() const {
    return {Scalar(k),          Scalar(scoring),     Scalar(renormalize), Scalar(2.5),   Scalar(groups),
            Scalar(top_groups), Scalar(group_score), Scalar(min_sum),     Scalar(jitter)};
  }
};

void ExpectSame(const Rule& rule, Array& logits, Array* bias) {
  std::vector<int64_t> shape = logits.shape();
  shape.back() = rule.k;
  Array weights(DType::kF32, shape, 3), ids(DType::kI32, shape, 1), want(DType::kF32, shape),
      want_ids(DType::kI32, shape);
  ASSERT_EQ(Launch(kernels::ops_moe_route_ref[0], {&logits, bias, &want, &want_ids}, rule.scalars()), 0);
  ASSERT_EQ(Launch(kernels::kernels_moe_route_cpu[0], {&logits, bias, &weights, &ids}, rule.scalars()), 0);
  EXPECT_EQ(ids.Values(), want_ids.Values());
  ExpectClose(weights.Values(), want.Values(), 0);
  EXPECT_TRUE(weights.PaddingUntouched() && ids.PaddingUntouched());
}

void ExpectSameByEveryRule(Array& logits, Array* bias) {
  const int64_t experts = logits.shape().back();
  for (const int64_t scoring : {int64_t{kSoftmax}, int64_t{kSigmoid}, int64_t{kSqrtSoftplus}}) {
    for (const bool renormalize : {false, true}) {
      for (const int64_t k : {int64_t{0}, int64_t{1}, experts / 4, experts}) {
        ExpectSame({.experts = experts, .k = k, .scoring = scoring, .renormalize = renormalize}, logits, bias);
      }
      for (const int64_t score : {int64_t{kMax}, int64_t{kTop2Sum}}) {
        for (const int64_t groups : {int64_t{2}, experts / 2, experts}) {
          ExpectSame({experts, 1, scoring, groups, groups / 2, score, renormalize}, logits, bias);
          ExpectSame({experts, experts, scoring, groups, groups, score, renormalize}, logits, bias);
        }
      }
    }
  }
}

TEST(CpuMoeRoute, GivesTheReferencesChoiceOfEveryDType) {
  for (const DType type : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16}) {
    Array logits(type, {5, 16}, 3), turned(type, {3, 2, 16}, 0, {2, 0, 1}), bias(DType::kF32, {16});
    logits.FillNormal(1, 2), turned.FillNormal(2, 2), bias.FillNormal(3, 0.2);
    for (Array* given : {static_cast<Array*>(nullptr), &bias}) {
      ExpectSameByEveryRule(logits, given);
      ExpectSameByEveryRule(turned, given);
    }
  }
}

TEST(CpuMoeRoute, MixesSparsely) {
  constexpr double kInf = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();
  Array logits(DType::kF32, {40, 16}), odd(DType::kF32, {4, 4});
  logits.FillNormal(1, 0.5);
  odd.Set({1, 1, 1, 1, kNan, 1, kNan, 2, -kInf, -kInf, 0, -kInf, kInf, 1, kInf, 0});
  for (const double jitter : {0.0, 0.01, 0.2, 1.0}) {
    for (const int64_t k : {0, 1, 2, 4}) {
      ExpectSame({.experts = 16, .k = k, .scoring = kSparsemixer, .jitter = jitter}, logits, nullptr);
      ExpectSame({.experts = 4, .k = k, .scoring = kSparsemixer, .jitter = jitter}, odd, nullptr);
    }
  }
}

TEST(CpuMoeRoute, DividesByTheLeastSum) {
  Array logits(DType::kF32, {5, 8});
  logits.FillNormal(1, 2);
  for (const double least : {0.3, 0.9, 2.0}) {
    ExpectSame({.experts = 8, .k = 2, .renormalize = true, .min_sum = least}, logits, nullptr);
  }
}

TEST(CpuMoeRoute, TakesTiesNanAndInfinitiesAsTheDefinitionDoes) {
  constexpr double kInf = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();
  Array logits(DType::kF32, {6, 4});
  logits.Set(
      {1, 1, 1, 1, 2, 0, 2, 0, kNan, 1, kNan, 2, -kInf, -kInf, -kInf, -kInf, kInf, 1, kInf, 0, -900, 900, 0, -0.0});
  Array bias(DType::kF64, {4});
  bias.Set({0, kNan, 0, -kInf});
  ExpectSameByEveryRule(logits, nullptr);
  ExpectSameByEveryRule(logits, &bias);
}

TEST(CpuMoeRoute, RoutesManyRowsOfManyExperts) {
  Array logits(DType::kBF16, {300, 1024}), none(DType::kF32, {0, 8}), row(DType::kF32, {7});
  logits.FillNormal(4), row.FillNormal(5);
  ExpectSame({.experts = 1024, .k = 8, .renormalize = true}, logits, nullptr);
  ExpectSame({1024, 9, kSigmoid, 8, 4, kTop2Sum, true}, logits, nullptr);
  ExpectSame({.experts = 8, .k = 2}, none, nullptr);
  ExpectSame({.experts = 7, .k = 7}, row, nullptr);
}

}  // namespace
}  // namespace lz
