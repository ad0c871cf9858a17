// cpu.reduce.tree bit for bit, and the property that it exists for: any aligned split into ranks gives the same sum.
#include "ops/reduce/tree.h"

#include <gtest/gtest.h>

#include "tests/kernels/against_reference.h"

namespace lz::kernels {
extern const KernelFamily kernels_reduce_tree_cpu, ops_reduce_tree_ref;
}  // namespace lz::kernels

namespace lz {
namespace {
using namespace testing_call;

const Pair kPair = {&kernels::kernels_reduce_tree_cpu[0], &kernels::ops_reduce_tree_ref[0],
                    ops::reduce_tree::kContract.tolerance};

TEST(CpuTree, HasTheBitsOfTheDefinition) {
  const DType outputs[] = {DType::kF32, DType::kF64, DType::kF16, DType::kBF16};
  for (const DType type : kTestTypes) {
    for (const int64_t n : {0, 1, 2, 3, 6, 7, 16, 21}) {
      for (int64_t to = 0; to < 4; ++to) {
        Array x(type, {n, 2, 300}, 1), out(outputs[to], {2, 300}, 3);
        x.FillNormal(uint32_t(n), 100);
        ExpectAgrees(kPair, {&x}, out, {Scalar(to)});
      }
    }
  }
}

TEST(CpuTree, SumsOfRanksGiveTheSumOfTheWhole) {
  constexpr int64_t kParts = 16, kHidden = 500;
  Array x(DType::kBF16, {kParts, 1, kHidden}), whole(DType::kF32, {1, kHidden});
  x.FillNormal(3, 10);
  ASSERT_EQ(Launch(*kPair.kernel, {&x, &whole}, {Scalar(int64_t{0})}), 0);
  const std::vector<double> values = x.Values();
  for (const int64_t ranks : {1, 2, 4, 8, 16}) {
    std::vector<double> sums;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const int64_t share = kParts / ranks;
      Array part(DType::kBF16, {share, 1, kHidden}), sum(DType::kF32, {1, kHidden});
      const auto first = values.begin() + rank * share * kHidden;
      part.Set({first, first + share * kHidden});
      ASSERT_EQ(Launch(*kPair.kernel, {&part, &sum}, {Scalar(int64_t{0})}), 0);
      const std::vector<double> of_rank = sum.Values();
      sums.insert(sums.end(), of_rank.begin(), of_rank.end());
    }
    Array gathered(DType::kF32, {ranks, 1, kHidden}), total(DType::kF32, {1, kHidden});
    gathered.Set(sums);
    ASSERT_EQ(Launch(*kPair.kernel, {&gathered, &total}, {Scalar(int64_t{0})}), 0);
    EXPECT_EQ(total.bytes(), whole.bytes()) << ranks;
  }
}

}  // namespace
}  // namespace lz
