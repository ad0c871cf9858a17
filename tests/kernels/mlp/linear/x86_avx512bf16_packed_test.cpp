// x86.mlp.linear.avx512bf16_packed: equals the reference on both sides of every block and tile, stays inside its
// tensors.
#include "tests/kernels/mlp/linear/linear_testing.h"

namespace lz::kernels {
extern const KernelFamily kernels_mlp_linear_x86_avx512bf16_packed;
}  // namespace lz::kernels

namespace lz::testing {
namespace {

class X86Avx512Bf16Packed : public ::testing::Test {
 protected:
  void SetUp() override {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512bf16")) return;
#endif
    GTEST_SKIP() << "this CPU has no AVX512-BF16";
  }
  const KernelSpec& Kernel() { return kernels::kernels_mlp_linear_x86_avx512bf16_packed[0]; }
};

TEST_F(X86Avx512Bf16Packed, EqualsTheReferenceAtEveryRemainder) {
  for (int64_t rows : {1, 15, 16, 17, 33, 48, 49, 64, 191, 193})
    for (int64_t n : {1, 7, 8, 9, 15, 16, 17, 33})
      for (int64_t k : {1, 2, 31, 32, 33, 95})
        ExpectLikeReference(Kernel(), {.type = DType::kBF16, .rows = rows, .n = n, .k = k, .bias = k % 2 == 0});
}

TEST_F(X86Avx512Bf16Packed, EqualsTheReferenceOverSeveralBlocksOfK) {
  for (int64_t k : {1023, 1024, 1025, 2049})
    for (int64_t rows : {35, 50})
      ExpectLikeReference(Kernel(), {.type = DType::kBF16, .rows = rows, .n = 9, .k = k, .bias = true});
}

TEST_F(X86Avx512Bf16Packed, TakesPaddedRows) {
  for (int64_t rows : {3, 53})
    ExpectLikeReference(Kernel(), {.type = DType::kBF16, .rows = rows, .n = 37, .k = 75, .bias = true, .pad = 5});
}

TEST_F(X86Avx512Bf16Packed, TakesZeroSizes) {
  for (bool bias : {false, true})
    ExpectLikeReference(Kernel(), {.type = DType::kBF16, .rows = 9, .n = 9, .k = 0, .bias = bias});
  ExpectLikeReference(Kernel(), {.type = DType::kBF16, .rows = 9, .n = 0, .k = 16});
  ExpectLikeReference(Kernel(), {.type = DType::kBF16, .rows = 0, .n = 9, .k = 16});
}

TEST_F(X86Avx512Bf16Packed, DoesNotDependOnThePartition) {
  for (int64_t rows : {1, 50})
    ExpectSameInParts(Kernel(), {.type = DType::kBF16, .rows = rows, .n = 403, .k = 300, .bias = true});
}

TEST_F(X86Avx512Bf16Packed, ANaNReachesItsRowOnly) {
  const LinearCall call = {.type = DType::kBF16, .rows = 2, .n = 6, .k = 70};
  LinearData data(call);
  data.input.view().Set({1, 69}, NAN);
  ASSERT_EQ(data.Run(Kernel(), call, data.output), 0);
  for (int64_t c = 0; c < call.n; ++c) {
    EXPECT_FALSE(std::isnan(data.output.view().Get({0, c})));
    EXPECT_TRUE(std::isnan(data.output.view().Get({1, c})));
  }
}

}  // namespace
}  // namespace lz::testing
