// x86.mlp.linear.avx512bf16_by_columns: equals the reference on both sides of every block and tile, stays inside its
// tensors.
#include "tests/kernels/mlp/linear/x86_avx512bf16_testing.h"

namespace lz::kernels {
extern const KernelFamily kernels_mlp_linear_x86_avx512bf16_by_columns;
}  // namespace lz::kernels

namespace lz::testing {
namespace {

class X86Avx512Bf16ByColumns : public Avx512Bf16Test {
 protected:
  const KernelSpec& Kernel() { return kernels::kernels_mlp_linear_x86_avx512bf16_by_columns[0]; }
  void Expect(LinearCall call) {
    call.type = DType::kBF16;
    call.by_columns = true;
    ExpectLikeReference(Kernel(), call);
  }
};

TEST_F(X86Avx512Bf16ByColumns, EqualsTheReferenceAtEveryRemainder) {
  for (int64_t rows : {1, 5, 6, 7, 13, 64, 65, 193})
    for (int64_t n : {1, 15, 16, 17, 31, 32, 33, 63, 64, 65})
      for (int64_t k : {1, 2, 31, 32, 33, 95}) Expect({.rows = rows, .n = n, .k = k, .bias = k % 2 == 0});
}

TEST_F(X86Avx512Bf16ByColumns, EqualsTheReferenceOverSeveralBlocksOfK) {
  for (int64_t k : {1023, 1024, 1025, 2049})
    for (int64_t rows : {5, 20}) Expect({.rows = rows, .n = 35, .k = k, .bias = true});
}

TEST_F(X86Avx512Bf16ByColumns, TakesPaddedRowsAndZeroSizes) { ExpectPaddedRowsAndZeroSizes(Kernel(), true); }
TEST_F(X86Avx512Bf16ByColumns, DoesNotDependOnThePartition) { ExpectTheSameInEveryPartition(Kernel(), true); }
TEST_F(X86Avx512Bf16ByColumns, FitsASmallStack) { ExpectItFitsASmallStack(Kernel(), true); }
TEST_F(X86Avx512Bf16ByColumns, ANaNReachesItsRowOnly) { ExpectANaNInItsRowOnly(Kernel(), true); }
TEST_F(X86Avx512Bf16ByColumns, SubnormalsAsTheyAreOrZero) { ExpectSubnormalsAsTheyAreOrZero(Kernel(), true); }

}  // namespace
}  // namespace lz::testing
