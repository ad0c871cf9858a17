// hwy.moe.fused_column_major against FP64.
#include "tests/kernels/moe/fused/moe_testing.h"
#include "tests/kernels/small_stack.h"

namespace lz::kernels {
extern const KernelFamily kernels_moe_fused_hwy_column_major;
}  // namespace lz::kernels

namespace lz {
namespace {
using namespace testing_moe;

const Pair kPair = {&kernels::kernels_moe_fused_hwy_column_major[0], &kernels::ops_moe_fused_ref[0],
                    ops::moe_fused::kContract.tolerance};

TEST(HwyFusedMoeColumnMajor, AgreesWithFp64InEveryForm) { CheckAll(kPair, true); }
TEST(HwyFusedMoeColumnMajor, FitsASmallStack) {
  testing::OnSmallStack([] { CheckType(kPair, true, DType::kF32); });
}

}  // namespace
}  // namespace lz
