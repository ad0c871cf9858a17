// x86.mlp.linear.avx512bf16_packed: equals the reference on both sides of every block and tile, stays inside its
// tensors.
#include "tests/kernels/mlp/linear/x86_avx512bf16_testing.h"

namespace lz::kernels {
extern const KernelFamily kernels_mlp_linear_x86_avx512bf16_packed;
}  // namespace lz::kernels

namespace lz::testing {
namespace {

class X86Avx512Bf16Packed : public Avx512Bf16Test {
 protected:
  const KernelSpec& Kernel() { return kernels::kernels_mlp_linear_x86_avx512bf16_packed[0]; }
};

TEST_F(X86Avx512Bf16Packed, EqualsTheReferenceAtEveryRemainder) {
  for (int64_t rows : {1, 5, 6, 7, 13, 64, 65, 193})
    for (int64_t n : {1, 15, 16, 17, 33, 63, 64, 65})
      for (int64_t k : {1, 2, 31, 32, 33, 95})
        ExpectLikeReference(Kernel(), {.type = DType::kBF16, .rows = rows, .n = n, .k = k, .bias = k % 2 == 0});
}

TEST_F(X86Avx512Bf16Packed, EqualsTheReferenceOverSeveralBlocksOfK) {
  for (int64_t k : {1023, 1024, 1025, 2049})
    for (int64_t rows : {35, 50})
      ExpectLikeReference(Kernel(), {.type = DType::kBF16, .rows = rows, .n = 9, .k = k, .bias = true});
  ExpectLikeReference(Kernel(), {.type = DType::kBF16, .rows = 1100, .n = 70, .k = 40, .bias = true});
}

TEST_F(X86Avx512Bf16Packed, TakesPaddedRowsAndZeroSizes) { ExpectPaddedRowsAndZeroSizes(Kernel()); }
TEST_F(X86Avx512Bf16Packed, DoesNotDependOnThePartition) { ExpectTheSameInEveryPartition(Kernel()); }
TEST_F(X86Avx512Bf16Packed, FitsASmallStack) { ExpectItFitsASmallStack(Kernel()); }
TEST_F(X86Avx512Bf16Packed, ANaNReachesItsRowOnly) { ExpectANaNInItsRowOnly(Kernel()); }
TEST_F(X86Avx512Bf16Packed, SubnormalsAsTheyAreOrZero) { ExpectSubnormalsAsTheyAreOrZero(Kernel()); }

}  // namespace
}  // namespace lz::testing
