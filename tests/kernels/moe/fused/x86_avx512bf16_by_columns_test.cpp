// x86.moe.fused_avx512bf16_by_columns against FP64.
#include "tests/kernels/mlp/linear/x86_avx512bf16_testing.h"
#include "tests/kernels/moe/fused/moe_testing.h"
#include "tests/kernels/small_stack.h"

namespace lz::kernels {
extern const KernelFamily kernels_moe_fused_x86_avx512bf16_by_columns;
}  // namespace lz::kernels

namespace lz::testing {
namespace {
using namespace testing_moe;

using X86FusedMoeByColumns = Avx512Bf16Test;

const Pair kPair = {&kernels::kernels_moe_fused_x86_avx512bf16_by_columns[0], &kernels::ops_moe_fused_ref[0],
                    ops::moe_fused::kContract.tolerance};

TEST_F(X86FusedMoeByColumns, AgreesWithFp64InEveryForm) { CheckType(kPair, true, DType::kBF16); }
TEST_F(X86FusedMoeByColumns, FitsASmallStack) {
  OnSmallStack([] { CheckType(kPair, true, DType::kBF16); });
}

}  // namespace
}  // namespace lz::testing
