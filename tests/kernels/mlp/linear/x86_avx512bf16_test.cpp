// x86.mlp.linear.avx512bf16: equals the reference on both sides of every block and tile, stays inside its tensors.
#include "tests/kernels/mlp/linear/x86_avx512bf16_testing.h"

namespace lz::kernels {
extern const KernelFamily kernels_mlp_linear_x86_avx512bf16;
}  // namespace lz::kernels

namespace lz::testing {
namespace {

class X86Avx512Bf16 : public Avx512Bf16Test {
 protected:
  const KernelSpec& Kernel() { return kernels::kernels_mlp_linear_x86_avx512bf16[0]; }
};

TEST_F(X86Avx512Bf16, EqualsTheReferenceAtEveryRemainder) {
  for (int64_t rows : {1, 2, 3, 4, 5, 6, 7, 11, 13, 48, 49, 55})
    for (int64_t n : {1, 3, 4, 15, 16, 17, 31, 32, 33, 37})
      for (int64_t k : {1, 2, 15, 31, 32, 33, 64, 95})
        ExpectLikeReference(Kernel(), {.type = DType::kBF16, .rows = rows, .n = n, .k = k, .bias = k % 2 == 0});
}

TEST_F(X86Avx512Bf16, EqualsTheReferenceOverSeveralBlocksOfK) {
  for (int64_t k : {2047, 2048, 2049, 4100, 8193})
    for (int64_t rows : {1, 7})
      ExpectLikeReference(Kernel(), {.type = DType::kBF16, .rows = rows, .n = 9, .k = k, .bias = true});
}

TEST_F(X86Avx512Bf16, TakesPaddedRowsAndZeroSizes) { ExpectPaddedRowsAndZeroSizes(Kernel()); }
TEST_F(X86Avx512Bf16, DoesNotDependOnThePartition) { ExpectTheSameInEveryPartition(Kernel()); }
TEST_F(X86Avx512Bf16, ANaNReachesItsRowOnly) { ExpectANaNInItsRowOnly(Kernel()); }
TEST_F(X86Avx512Bf16, SubnormalsAsTheyAreOrZero) { ExpectSubnormalsAsTheyAreOrZero(Kernel()); }

}  // namespace
}  // namespace lz::testing
