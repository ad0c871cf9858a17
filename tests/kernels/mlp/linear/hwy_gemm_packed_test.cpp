// hwy.mlp.linear.gemm_packed: equals the reference on both sides of every block and tile, stays inside its tensors.
#include "tests/kernels/mlp/linear/linear_testing.h"
#include "tests/kernels/small_stack.h"
#include "tests/kernels/targets.h"

namespace lz::kernels {
extern const KernelFamily kernels_mlp_linear_hwy_gemm_packed;
}  // namespace lz::kernels

namespace lz::testing {
namespace {

const KernelSpec& Kernel() { return kernels::kernels_mlp_linear_hwy_gemm_packed[0]; }

// Every test runs with each instruction set that this CPU has.
class HwyGemmPacked : public OnEachTarget {};
INSTANTIATE_TEST_SUITE_P(Targets, HwyGemmPacked, AllTargets(), NameOfTarget);

TEST_P(HwyGemmPacked, EqualsTheReferenceAtEveryRemainder) {
  for (DType type : {DType::kF32, DType::kBF16, DType::kF16})
    for (int64_t rows : {1, 5, 6, 7, 13, 64, 65})
      for (int64_t n : {1, 7, 8, 9, 15, 17, 33, 63, 64, 65})
        for (int64_t k : {1, 3, 4, 5, 33, 71})
          ExpectLikeReference(Kernel(), {.type = type, .rows = rows, .n = n, .k = k, .bias = k % 2 == 0});
}

TEST_P(HwyGemmPacked, EqualsTheReferenceOverSeveralBlocksOfK) {
  for (DType type : {DType::kF32, DType::kBF16, DType::kF16})
    for (int64_t k : {511, 512, 513, 4100})
      ExpectLikeReference(Kernel(), {.type = type, .rows = 7, .n = 9, .k = k, .bias = true});
}

TEST_P(HwyGemmPacked, EqualsTheReferenceOverSeveralBlocksOfRows) {
  for (DType type : {DType::kF32, DType::kBF16, DType::kF16})
    for (int64_t rows : {511, 512, 513, 1100})
      ExpectLikeReference(Kernel(), {.type = type, .rows = rows, .n = 25, .k = 9, .bias = true, .pad = 3});
}

TEST_P(HwyGemmPacked, ARowDoesNotDependOnTheOthers) {
  LinearCall call = {.type = DType::kF32, .rows = 250, .n = 31, .k = 300};
  LinearData data(call);
  ASSERT_EQ(data.Run(Kernel(), call, data.output), 0);
  Matrix few(call.type, 17, call.n);
  lz_tensor rows = data.input.tensor();
  int64_t shape[] = {17, call.k};
  rows.shape = shape;
  ASSERT_EQ(data.Run(Kernel(), call, few, rows), 0);
  EXPECT_EQ(few.bytes(), data.output.bytes().substr(0, few.bytes().size()));
}

TEST_P(HwyGemmPacked, TakesPaddedRows) {
  for (DType type : {DType::kF32, DType::kBF16, DType::kF16})
    ExpectLikeReference(Kernel(), {.type = type, .rows = 53, .n = 37, .k = 75, .bias = true, .pad = 5});
}

TEST_P(HwyGemmPacked, WithoutWeightsGivesTheBias) {
  for (DType type : {DType::kF32, DType::kBF16, DType::kF16})
    for (bool bias : {false, true})
      ExpectLikeReference(Kernel(), {.type = type, .rows = 9, .n = 9, .k = 0, .bias = bias});
  ExpectLikeReference(Kernel(), {.type = DType::kBF16, .rows = 9, .n = 0, .k = 16});
}

TEST_P(HwyGemmPacked, FitsASmallStack) {
  OnSmallStack([] { ExpectLikeReference(Kernel(), {.rows = 70, .n = 70, .k = 70}); });
}

TEST_P(HwyGemmPacked, DoesNotDependOnThePartition) {
  for (DType type : {DType::kF32, DType::kBF16, DType::kF16})
    ExpectSameInParts(Kernel(), {.type = type, .rows = 250, .n = 203, .k = 300, .bias = true});
}

}  // namespace
}  // namespace lz::testing
