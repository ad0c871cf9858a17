// x86.moe.fused_avx512bf16_column_major against FP64.
#include "tests/kernels/mlp/linear/x86_avx512bf16_testing.h"
#include "tests/kernels/moe/fused/moe_testing.h"
#include "tests/kernels/small_stack.h"

namespace lz::kernels {
extern const KernelFamily kernels_moe_fused_x86_avx512bf16_column_major;
}  // namespace lz::kernels

namespace lz::testing {
namespace {
using namespace testing_moe;

using X86FusedMoeColumnMajor = Avx512Bf16Test;

const Pair kPair = {&kernels::kernels_moe_fused_x86_avx512bf16_column_major[0], &kernels::ops_moe_fused_ref[0],
                    ops::moe_fused::kContract.tolerance};

TEST_F(X86FusedMoeColumnMajor, AgreesWithFp64InEveryForm) { CheckType(kPair, true, DType::kBF16); }
TEST_F(X86FusedMoeColumnMajor, FitsASmallStack) {
  OnSmallStack([] { CheckType(kPair, true, DType::kBF16); });
}

}  // namespace
}  // namespace lz::testing
