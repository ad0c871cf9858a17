// hwy.mlp.linear.gemm_packed and .column_major: equal the reference on both sides of every block and tile, stay inside
// their tensors.
#include "tests/kernels/kernel_of.h"
#include "tests/kernels/mlp/linear/linear_testing.h"
#include "tests/kernels/small_stack.h"
#include "tests/kernels/targets.h"

namespace lz::kernels {
extern const KernelFamily kernels_mlp_linear_hwy_gemm_packed;
}  // namespace lz::kernels

namespace lz::testing {
namespace {

const KernelSpec& Kernel() {
  return KernelOf(kernels::kernels_mlp_linear_hwy_gemm_packed, "hwy.mlp.linear.gemm_packed");
}
const KernelSpec& ColumnMajor() {
  return KernelOf(kernels::kernels_mlp_linear_hwy_gemm_packed, "hwy.mlp.linear.column_major");
}

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

constexpr std::array<DType, 3> kTypes = {DType::kF32, DType::kBF16, DType::kF16};

class HwyColumnMajor : public OnEachTarget {};
INSTANTIATE_TEST_SUITE_P(Targets, HwyColumnMajor, AllTargets(), NameOfTarget);

TEST_P(HwyColumnMajor, EqualsTheReferenceForFewRows) {
  for (DType type : kTypes)
    for (int64_t rows = 1; rows <= 4; ++rows)
      for (int64_t n : {1, 3, 4, 7, 8, 15, 16, 17, 33, 70, 530, 1090})
        for (int64_t k : {1, 2, 3, 7, 8, 9, 16, 21})
          ExpectLikeReference(ColumnMajor(),
                              {.type = type, .rows = rows, .n = n, .k = k, .bias = k % 2 == 0, .column_major = true});
}

TEST_P(HwyColumnMajor, EqualsTheReferenceForManyRows) {
  for (DType type : kTypes)
    for (int64_t rows : {5, 6, 7, 8, 9, 13, 31, 32})
      for (int64_t n : {1, 5, 15, 16, 17, 25, 47, 63, 64, 65, 100})
        for (int64_t k : {1, 3, 4, 9, 130})
          ExpectLikeReference(ColumnMajor(),
                              {.type = type, .rows = rows, .n = n, .k = k, .bias = k % 2 == 0, .column_major = true});
  ExpectLikeReference(ColumnMajor(), {.rows = 520, .n = 50, .k = 600, .bias = true, .column_major = true});
}

TEST_P(HwyColumnMajor, TakesPaddedMatrices) {
  for (DType type : kTypes)
    for (int64_t rows : {1, 3, 4, 12})
      ExpectLikeReference(ColumnMajor(),
                          {.type = type, .rows = rows, .n = 75, .k = 13, .bias = true, .pad = 5, .column_major = true});
}

TEST_P(HwyColumnMajor, WithoutWeightsGivesTheBias) {
  for (DType type : kTypes)
    for (int64_t rows : {2, 9})
      for (bool bias : {false, true})
        ExpectLikeReference(ColumnMajor(),
                            {.type = type, .rows = rows, .n = 9, .k = 0, .bias = bias, .column_major = true});
}

TEST_P(HwyColumnMajor, TakesEmptyOutputs) {
  ExpectLikeReference(ColumnMajor(), {.rows = 0, .n = 9, .k = 16, .column_major = true});
  ExpectLikeReference(ColumnMajor(), {.type = DType::kBF16, .rows = 2, .n = 0, .k = 16, .column_major = true});
  ExpectLikeReference(ColumnMajor(), {.type = DType::kBF16, .rows = 9, .n = 0, .k = 16, .column_major = true});
}

TEST_P(HwyColumnMajor, DoesNotDependOnThePartition) {
  for (DType type : kTypes)
    for (int64_t rows : {1, 3, 37})
      ExpectSameInParts(ColumnMajor(),
                        {.type = type, .rows = rows, .n = 1403, .k = 275, .bias = true, .column_major = true});
}

TEST_P(HwyColumnMajor, FitsASmallStack) {
  OnSmallStack([] { ExpectLikeReference(ColumnMajor(), {.rows = 70, .n = 70, .k = 70, .column_major = true}); });
  OnSmallStack([] { ExpectLikeReference(ColumnMajor(), {.rows = 4, .n = 1090, .k = 70, .column_major = true}); });
}

TEST_P(HwyColumnMajor, ANaNReachesItsRowOnly) {
  for (DType type : kTypes) {
    for (int64_t rows : {2, 9}) {
      const LinearCall call = {.type = type, .rows = rows, .n = 6, .k = 70, .column_major = true};
      LinearData data(call);
      data.input.view().Set({1, 69}, NAN);
      ASSERT_EQ(data.Run(ColumnMajor(), call, data.output), 0);
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < call.n; ++c) EXPECT_EQ(std::isnan(data.output.view().Get({r, c})), r == 1);
    }
  }
}

TEST_P(HwyColumnMajor, AnInfinityReachesItsColumnOnly) {
  for (DType type : kTypes) {
    for (int64_t rows : {2, 9}) {
      const LinearCall call = {.type = type, .rows = rows, .n = 50, .k = 70, .column_major = true};
      LinearData data(call);
      data.weight.view().Set({49, 3}, INFINITY);
      ASSERT_EQ(data.Run(ColumnMajor(), call, data.output), 0);
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < call.n; ++c) EXPECT_EQ(std::isinf(data.output.view().Get({r, c})), c == 49);
    }
  }
}

}  // namespace
}  // namespace lz::testing
