// x86.mlp.linear.avx512bf16_packed and _column_major: equal the reference on both sides of every block and tile, stay
// inside their tensors.
#include "tests/kernels/kernel_of.h"
#include "tests/kernels/mlp/linear/x86_avx512bf16_testing.h"

namespace lz::kernels {
extern const KernelFamily kernels_mlp_linear_x86_avx512bf16_packed;
}  // namespace lz::kernels

namespace lz::testing {
namespace {

class X86Avx512Bf16Packed : public Avx512Bf16Test {
 protected:
  const KernelSpec& Kernel() {
    return KernelOf(kernels::kernels_mlp_linear_x86_avx512bf16_packed, "x86.mlp.linear.avx512bf16_packed");
  }
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

class X86Avx512Bf16ColumnMajor : public Avx512Bf16Test {
 protected:
  const KernelSpec& Kernel() {
    return KernelOf(kernels::kernels_mlp_linear_x86_avx512bf16_packed, "x86.mlp.linear.avx512bf16_column_major");
  }
  void Expect(LinearCall call) {
    call.type = DType::kBF16;
    call.column_major = true;
    ExpectLikeReference(Kernel(), call);
  }
};

TEST_F(X86Avx512Bf16ColumnMajor, EqualsTheReferenceAtEveryRemainder) {
  for (int64_t rows : {1, 5, 6, 7, 13, 64, 65, 193})
    for (int64_t n : {1, 15, 16, 17, 31, 32, 33, 63, 64, 65})
      for (int64_t k : {1, 2, 31, 32, 33, 95}) Expect({.rows = rows, .n = n, .k = k, .bias = k % 2 == 0});
}

TEST_F(X86Avx512Bf16ColumnMajor, EqualsTheReferenceOverSeveralBlocksOfK) {
  for (int64_t k : {1023, 1024, 1025, 2049})
    for (int64_t rows : {5, 20}) Expect({.rows = rows, .n = 35, .k = k, .bias = true});
}

TEST_F(X86Avx512Bf16ColumnMajor, TakesPaddedRowsAndZeroSizes) { ExpectPaddedRowsAndZeroSizes(Kernel(), true); }
TEST_F(X86Avx512Bf16ColumnMajor, DoesNotDependOnThePartition) { ExpectTheSameInEveryPartition(Kernel(), true); }
TEST_F(X86Avx512Bf16ColumnMajor, FitsASmallStack) { ExpectItFitsASmallStack(Kernel(), true); }
TEST_F(X86Avx512Bf16ColumnMajor, ANaNReachesItsRowOnly) { ExpectANaNInItsRowOnly(Kernel(), true); }
TEST_F(X86Avx512Bf16ColumnMajor, SubnormalsAsTheyAreOrZero) { ExpectSubnormalsAsTheyAreOrZero(Kernel(), true); }

}  // namespace
}  // namespace lz::testing
