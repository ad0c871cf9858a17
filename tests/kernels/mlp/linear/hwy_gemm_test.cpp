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

TEST_P(HwyGemm, EqualsTheReferenceOverSeveralBlocksOfK) {
  for (DType type : {DType::kF32, DType::kBF16, DType::kF16})
    for (int64_t k : {1023, 1024, 1025, 2048, 2049, 4100})
      ExpectLikeReference(Kernel(), {.type = type, .rows = 7, .n = 9, .k = k, .bias = true});
}

TEST_P(HwyGemm, TakesPaddedRows) {
  for (DType type : {DType::kF32, DType::kBF16, DType::kF16})
    ExpectLikeReference(Kernel(), {.type = type, .rows = 53, .n = 37, .k = 75, .bias = true, .pad = 5});
}

TEST_P(HwyGemm, WithoutWeightsGivesTheBias) {
  for (DType type : {DType::kF32, DType::kBF16, DType::kF16})
    for (bool bias : {false, true})
      ExpectLikeReference(Kernel(), {.type = type, .rows = 9, .n = 9, .k = 0, .bias = bias});
  ExpectLikeReference(Kernel(), {.type = DType::kBF16, .rows = 9, .n = 0, .k = 16});
}

TEST_P(HwyGemm, DoesNotDependOnThePartition) {
  for (DType type : {DType::kF32, DType::kBF16, DType::kF16})
    ExpectSameInParts(Kernel(), {.type = type, .rows = 50, .n = 203, .k = 300, .bias = true});
}

}  // namespace
}  // namespace lz::testing
