// x86.mlp.linear.amx: equals the reference on both sides of every block and tile, stays inside its
// tensors.
#include "platform/device.h"
#include "tests/kernels/mlp/linear/x86_avx512bf16_testing.h"

namespace lz::kernels {
extern const KernelFamily kernels_mlp_linear_x86_amx;
}  // namespace lz::kernels

namespace lz::testing {
namespace {

class X86Amx : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!(HostCpu().fact(DeviceField::kIsa) & kIsaAmxBf16)) GTEST_SKIP() << "this CPU has no AMX for BF16";
  }
  const KernelSpec& Kernel() { return kernels::kernels_mlp_linear_x86_amx[0]; }
};

TEST_F(X86Amx, EqualsTheReferenceAtEveryRemainder) {
  for (int64_t rows : {1, 15, 16, 17, 33, 48, 49, 64, 191, 193})
    for (int64_t n : {1, 7, 8, 9, 15, 16, 17, 33})
      for (int64_t k : {1, 2, 31, 32, 33, 95})
        ExpectLikeReference(Kernel(), {.type = DType::kBF16, .rows = rows, .n = n, .k = k, .bias = k % 2 == 0});
}

TEST_F(X86Amx, EqualsTheReferenceOverSeveralBlocksOfK) {
  for (int64_t k : {319, 320, 321, 352, 640, 641, 1057})
    for (int64_t n : {9, 32, 65})
      ExpectLikeReference(Kernel(), {.type = DType::kBF16, .rows = 35, .n = n, .k = k, .bias = true});
}

TEST_F(X86Amx, EqualsTheReferenceOverSeveralBlocksOfStrips) {
  ExpectLikeReference(Kernel(), {.type = DType::kBF16, .rows = 1041, .n = 33, .k = 33});
  ExpectLikeReference(Kernel(), {.type = DType::kBF16, .rows = 500, .n = 33, .k = 1057});
}

TEST_F(X86Amx, TakesPaddedRowsAndZeroSizes) { ExpectPaddedRowsAndZeroSizes(Kernel()); }
TEST_F(X86Amx, DoesNotDependOnThePartition) { ExpectTheSameInEveryPartition(Kernel()); }
TEST_F(X86Amx, ANaNReachesItsRowOnly) { ExpectANaNInItsRowOnly(Kernel()); }
TEST_F(X86Amx, SubnormalsAsTheyAreOrZero) { ExpectSubnormalsAsTheyAreOrZero(Kernel()); }

}  // namespace
}  // namespace lz::testing
