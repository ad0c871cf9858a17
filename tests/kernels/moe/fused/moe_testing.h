// What the kernels of moe.fused must do alike, against FP64: forms of the weights, experts of many rows, blocks of
// tokens, ids of other ranks.
#pragma once

#include <gtest/gtest.h>

#include "ops/moe/fused.h"
#include "tests/kernels/against_reference.h"

namespace lz::kernels {
extern const KernelFamily ops_moe_fused_ref;
}  // namespace lz::kernels

namespace lz::testing_moe {
using namespace testing_call;

inline std::vector<lz_scalar> Scalars(int64_t activation, bool clamped, int64_t weighted) {
  return {Scalar(activation),
          clamped ? Scalar(1.5) : lz_scalar{},
          Scalar(clamped ? 1.702 : 1.0),
          Scalar(clamped ? 1.0 : 0.0),
          Scalar(clamped),
          Scalar(weighted)};
}

inline void Check(const Pair& pair, bool column_major, DType type, int64_t tokens, int64_t k, int64_t experts,
                  int64_t d, int64_t n, int64_t m) {
  SCOPED_TRACE(std::string(Info(type).name) + " tokens " + std::to_string(tokens));
  Array x(type, {tokens, d}, 1), ids(DType::kI32, {tokens, k}, 1), weights(DType::kF32, {tokens, k});
  const std::vector<int> order = column_major ? std::vector<int>{0, 2, 1} : std::vector<int>{};
  Array packed(type, {experts, 2 * n, d}, 0, order), gate(type, {experts, n, d}, 0, order),
      up(type, {experts, n, d}, 0, order), down(type, {experts, m, n}, 0, order);
  Array packed_bias(type, {experts, 2 * n}), up_bias(type, {experts, n}), down_bias(type, {experts, m});
  Array out(type, {tokens, m}, 3);
  uint32_t seed = 1;
  for (Array* a : {&x, &weights, &packed, &gate, &up, &down, &packed_bias, &up_bias, &down_bias}) a->FillNormal(seed++);
  std::mt19937 random(5);
  std::vector<double> chosen(size_t(tokens * k));
  for (double& id : chosen) id = double(random() % uint64_t(experts + 1)) - 1;  // -1: another rank's
  ids.Set(chosen);
  ExpectAgrees(pair, {&x, &ids, &weights, &packed, &down, nullptr, nullptr, nullptr, nullptr}, out,
               Scalars(0, false, 0));
  ExpectAgrees(pair, {&x, &ids, &weights, &packed, &down, nullptr, &packed_bias, nullptr, &down_bias}, out,
               Scalars(0, true, 0));
  ExpectAgrees(pair, {&x, &ids, &weights, &gate, &down, &up, nullptr, &up_bias, &down_bias}, out, Scalars(2, false, 1));
}

inline void CheckType(const Pair& pair, bool column_major, DType type) {
  Check(pair, column_major, type, 1, 2, 4, 24, 16, 33);
  Check(pair, column_major, type, 33, 4, 8, 37, 20, 40);
  Check(pair, column_major, type, 130, 2, 2, 16, 9, 35);
  Check(pair, column_major, type, 0, 2, 4, 8, 8, 8);
}

inline void CheckAll(const Pair& pair, bool column_major) {
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) CheckType(pair, column_major, type);
  Check(pair, column_major, DType::kF32, 1100, 1, 2, 8, 8,
        9);  // more than one block of tokens, more than one chunk of an expert
  Check(pair, column_major, DType::kF32, 3, 1, 2, 9, 300, 1090);
}

}  // namespace lz::testing_moe
