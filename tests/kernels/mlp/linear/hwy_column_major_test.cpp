// hwy.mlp.linear.column_major: equals the reference at odd sizes, stays inside its tensors, does not depend on the
// partition.
#include "tests/kernels/mlp/linear/linear_testing.h"
#include "tests/kernels/small_stack.h"
#include "tests/kernels/targets.h"

namespace lz::kernels {
extern const KernelFamily kernels_mlp_linear_hwy_column_major;
}  // namespace lz::kernels

namespace lz::testing {
namespace {

const KernelSpec& Kernel() { return kernels::kernels_mlp_linear_hwy_column_major[0]; }
constexpr std::array<DType, 3> kTypes = {DType::kF32, DType::kBF16, DType::kF16};

// Every test runs with each instruction set that this CPU has.
class HwyColumnMajor : public OnEachTarget {};
INSTANTIATE_TEST_SUITE_P(Targets, HwyColumnMajor, AllTargets(), NameOfTarget);

TEST_P(HwyColumnMajor, EqualsTheReferenceForFewRows) {
  for (DType type : kTypes)
    for (int64_t rows = 1; rows <= 4; ++rows)
      for (int64_t n : {1, 3, 4, 7, 8, 15, 16, 17, 33, 70, 530, 1090})
        for (int64_t k : {1, 2, 3, 7, 8, 9, 16, 21})
          ExpectLikeReference(Kernel(),
                              {.type = type, .rows = rows, .n = n, .k = k, .bias = k % 2 == 0, .column_major = true});
}

TEST_P(HwyColumnMajor, EqualsTheReferenceForManyRows) {
  for (DType type : kTypes)
    for (int64_t rows : {5, 6, 7, 8, 9, 13, 31, 32})
      for (int64_t n : {1, 5, 15, 16, 17, 25, 47, 63, 64, 65, 100})
        for (int64_t k : {1, 3, 4, 9, 130})
          ExpectLikeReference(Kernel(),
                              {.type = type, .rows = rows, .n = n, .k = k, .bias = k % 2 == 0, .column_major = true});
  ExpectLikeReference(Kernel(), {.rows = 520, .n = 50, .k = 600, .bias = true, .column_major = true});
}

TEST_P(HwyColumnMajor, TakesPaddedMatrices) {
  for (DType type : kTypes)
    for (int64_t rows : {1, 3, 4, 12})
      ExpectLikeReference(Kernel(),
                          {.type = type, .rows = rows, .n = 75, .k = 13, .bias = true, .pad = 5, .column_major = true});
}

TEST_P(HwyColumnMajor, WithoutWeightsGivesTheBias) {
  for (DType type : kTypes)
    for (int64_t rows : {2, 9})
      for (bool bias : {false, true})
        ExpectLikeReference(Kernel(), {.type = type, .rows = rows, .n = 9, .k = 0, .bias = bias, .column_major = true});
}

TEST_P(HwyColumnMajor, TakesEmptyOutputs) {
  ExpectLikeReference(Kernel(), {.rows = 0, .n = 9, .k = 16, .column_major = true});
  ExpectLikeReference(Kernel(), {.type = DType::kBF16, .rows = 2, .n = 0, .k = 16, .column_major = true});
  ExpectLikeReference(Kernel(), {.type = DType::kBF16, .rows = 9, .n = 0, .k = 16, .column_major = true});
}

TEST_P(HwyColumnMajor, DoesNotDependOnThePartition) {
  for (DType type : kTypes)
    for (int64_t rows : {1, 3, 37})
      ExpectSameInParts(Kernel(),
                        {.type = type, .rows = rows, .n = 1403, .k = 275, .bias = true, .column_major = true});
}

TEST_P(HwyColumnMajor, FitsASmallStack) {
  OnSmallStack([] { ExpectLikeReference(Kernel(), {.rows = 70, .n = 70, .k = 70, .column_major = true}); });
  OnSmallStack([] { ExpectLikeReference(Kernel(), {.rows = 4, .n = 1090, .k = 70, .column_major = true}); });
}

TEST_P(HwyColumnMajor, ANaNReachesItsRowOnly) {
  for (DType type : kTypes) {
    for (int64_t rows : {2, 9}) {
      const LinearCall call = {.type = type, .rows = rows, .n = 6, .k = 70, .column_major = true};
      LinearData data(call);
      data.input.view().Set({1, 69}, NAN);
      ASSERT_EQ(data.Run(Kernel(), call, data.output), 0);
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
      ASSERT_EQ(data.Run(Kernel(), call, data.output), 0);
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < call.n; ++c) EXPECT_EQ(std::isinf(data.output.view().Get({r, c})), c == 49);
    }
  }
}

}  // namespace
}  // namespace lz::testing
