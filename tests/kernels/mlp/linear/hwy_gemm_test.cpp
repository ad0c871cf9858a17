// hwy.mlp.linear.gemm: equals the reference on both sides of every block and tile, stays inside its tensors.
#include "tests/kernels/mlp/linear/linear_testing.h"
#include "tests/kernels/targets.h"

namespace lz::kernels {
extern const KernelFamily kernels_mlp_linear_hwy_gemm;
}  // namespace lz::kernels

namespace lz::testing {
namespace {

const KernelSpec& Kernel() { return kernels::kernels_mlp_linear_hwy_gemm[0]; }

// Every test runs with each instruction set that this CPU has.
class HwyGemm : public OnEachTarget {};
INSTANTIATE_TEST_SUITE_P(Targets, HwyGemm, AllTargets(), NameOfTarget);

TEST_P(HwyGemm, EqualsTheReferenceAtEveryRemainder) {
  for (DType type : {DType::kF32, DType::kBF16, DType::kF16})
    for (int64_t rows : {5, 6, 7, 8, 11, 12, 13, 47, 48, 49, 55})
      for (int64_t n : {1, 3, 4, 31, 32, 33, 37})
        for (int64_t k : {1, 15, 16, 33, 64, 71})
          ExpectLikeReference(Kernel(), {.type = type, .rows = rows, .n = n, .k = k, .bias = k % 2 == 0});
}

TEST_P(HwyGemm, EqualsTheReferenceForFewRows) {
  for (DType type : {DType::kF32, DType::kBF16, DType::kF16})
    for (int64_t rows = 1; rows <= 4; ++rows)
      for (int64_t n : {1, 2, 3, 4, 5, 8, 11})
        for (int64_t k : {1, 2, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 96, 127, 200})
          ExpectLikeReference(Kernel(), {.type = type, .rows = rows, .n = n, .k = k, .bias = k % 2 == 0});
}

TEST_P(HwyGemm, EqualsTheReferenceOverSeveralBlocksOfK) {
  for (DType type : {DType::kF32, DType::kBF16, DType::kF16})
    for (int64_t k : {1023, 1024, 1025, 2048, 2049, 4100})
      ExpectLikeReference(Kernel(), {.type = type, .rows = 7, .n = 9, .k = k, .bias = true});
}

TEST_P(HwyGemm, TakesPaddedRows) {
  for (DType type : {DType::kF32, DType::kBF16, DType::kF16})
    for (int64_t rows : {1, 3, 4, 53})
      ExpectLikeReference(Kernel(), {.type = type, .rows = rows, .n = 37, .k = 75, .bias = true, .pad = 5});
}

TEST_P(HwyGemm, WithoutWeightsGivesTheBias) {
  for (DType type : {DType::kF32, DType::kBF16, DType::kF16})
    for (bool bias : {false, true})
      for (int64_t rows : {2, 9})
        ExpectLikeReference(Kernel(), {.type = type, .rows = rows, .n = 9, .k = 0, .bias = bias});
}

TEST_P(HwyGemm, TakesEmptyOutputs) {
  ExpectLikeReference(Kernel(), {.rows = 0, .n = 9, .k = 16});
  for (int64_t rows : {2, 9}) ExpectLikeReference(Kernel(), {.type = DType::kBF16, .rows = rows, .n = 0, .k = 16});
}

TEST_P(HwyGemm, DoesNotDependOnThePartition) {
  for (DType type : {DType::kF32, DType::kBF16, DType::kF16})
    for (int64_t rows : {3, 50})
      ExpectSameInParts(Kernel(), {.type = type, .rows = rows, .n = 203, .k = 300, .bias = true});
}

TEST_P(HwyGemm, ANaNReachesItsRowOnly) {
  for (DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    const LinearCall call = {.type = type, .rows = 2, .n = 6, .k = 70};
    LinearData data(call);
    data.input.view().Set({1, 69}, NAN);
    ASSERT_EQ(data.Run(Kernel(), call, data.output), 0);
    for (int64_t c = 0; c < call.n; ++c) {
      EXPECT_FALSE(std::isnan(data.output.view().Get({0, c})));
      EXPECT_TRUE(std::isnan(data.output.view().Get({1, c})));
    }
  }
}

}  // namespace
}  // namespace lz::testing
