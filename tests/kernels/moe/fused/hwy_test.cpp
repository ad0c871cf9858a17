// hwy.moe.fused against FP64: forms of the weights, experts of many rows, blocks of tokens, ids of other ranks.
#include "ops/moe/fused.h"

#include <gtest/gtest.h>

#include "tests/kernels/against_reference.h"

namespace lz::kernels {
extern const KernelFamily kernels_moe_fused_hwy, ops_moe_fused_ref;
}  // namespace lz::kernels

namespace lz {
namespace {
using namespace testing_call;

const Pair kPair = {&kernels::kernels_moe_fused_hwy[0], &kernels::ops_moe_fused_ref[0],
                    ops::moe_fused::kContract.tolerance};

std::vector<lz_scalar> Scalars(int64_t activation, bool clamped, int64_t weighted) {
  return {Scalar(activation),
          clamped ? Scalar(1.5) : lz_scalar{},
          Scalar(clamped ? 1.702 : 1.0),
          Scalar(clamped ? 1.0 : 0.0),
          Scalar(clamped),
          Scalar(weighted)};
}

void Check(DType type, int64_t tokens, int64_t k, int64_t experts, int64_t d, int64_t n, int64_t m) {
  SCOPED_TRACE(std::string(Info(type).name) + " tokens " + std::to_string(tokens));
  Array x(type, {tokens, d}, 1), ids(DType::kI32, {tokens, k}, 1), weights(DType::kF32, {tokens, k});
  Array packed(type, {experts, 2 * n, d}), gate(type, {experts, n, d}), up(type, {experts, n, d}),
      down(type, {experts, m, n});
  Array packed_bias(type, {experts, 2 * n}), up_bias(type, {experts, n}), down_bias(type, {experts, m});
  Array out(type, {tokens, m}, 3);
  uint32_t seed = 1;
  for (Array* a : {&x, &weights, &packed, &gate, &up, &down, &packed_bias, &up_bias, &down_bias}) a->FillNormal(seed++);
  std::mt19937 random(5);
  std::vector<double> chosen(size_t(tokens * k));
  for (double& id : chosen) id = double(random() % uint64_t(experts + 1)) - 1;  // -1: another rank's
  ids.Set(chosen);
  ExpectAgrees(kPair, {&x, &ids, &weights, &packed, &down, nullptr, nullptr, nullptr, nullptr}, out,
               Scalars(0, false, 0));
  ExpectAgrees(kPair, {&x, &ids, &weights, &packed, &down, nullptr, &packed_bias, nullptr, &down_bias}, out,
               Scalars(0, true, 0));
  ExpectAgrees(kPair, {&x, &ids, &weights, &gate, &down, &up, nullptr, &up_bias, &down_bias}, out,
               Scalars(2, false, 1));
}

TEST(HwyFusedMoe, AgreesWithFp64InEveryForm) {
  for (const DType type : {DType::kF32, DType::kBF16}) {
    Check(type, 1, 2, 4, 24, 16, 33);
    Check(type, 33, 4, 8, 37, 20, 40);
    Check(type, 130, 2, 2, 16, 9, 35);
    Check(type, 0, 2, 4, 8, 8, 8);
  }
  Check(DType::kF32, 1100, 1, 2, 8, 8, 9);  // more than one block of tokens, more than one chunk of an expert
}

TEST(HwyFusedMoe, TheSameExpertTwiceCountsTwice) {
  Array x(DType::kF32, {1, 8}), ids(DType::kI64, {1, 2}), weights(DType::kF32, {1, 2}), out(DType::kF32, {1, 6});
  Array gate(DType::kF32, {2, 8, 8}), down(DType::kF32, {2, 6, 4});
  x.FillNormal(1);
  gate.FillNormal(2);
  down.FillNormal(3);
  ids.Set({1, 1});
  weights.Set({0.25, 0.5});
  ExpectAgrees(kPair, {&x, &ids, &weights, &gate, &down, nullptr, nullptr, nullptr, nullptr}, out,
               Scalars(0, false, 0));
}

}  // namespace
}  // namespace lz
