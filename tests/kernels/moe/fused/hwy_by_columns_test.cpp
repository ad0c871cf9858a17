// hwy.moe.fused_by_columns against FP64.
#include "tests/kernels/moe/fused/moe_testing.h"
#include "tests/kernels/small_stack.h"

namespace lz::kernels {
extern const KernelFamily kernels_moe_fused_hwy_by_columns;
}  // namespace lz::kernels

namespace lz {
namespace {
using namespace testing_moe;

const Pair kPair = {&kernels::kernels_moe_fused_hwy_by_columns[0], &kernels::ops_moe_fused_ref[0],
                    ops::moe_fused::kContract.tolerance};

TEST(HwyFusedMoeByColumns, AgreesWithFp64InEveryForm) { CheckAll(kPair, true); }
TEST(HwyFusedMoeByColumns, FitsASmallStack) {
  testing::OnSmallStack([] { CheckType(kPair, true, DType::kF32); });
}

}  // namespace
}  // namespace lz
