// x86.mlp.linear.panels.avx512bf16: equals the reference on both sides of every block and tile, inside its tensors.
#include "tests/kernels/mlp/linear/panels/panels_testing.h"

namespace lz::kernels {
extern const KernelFamily kernels_mlp_linear_panels_x86_avx512bf16;
}  // namespace lz::kernels

namespace lz::testing {
namespace {

class X86Avx512Bf16Panels : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!HasAvx512Bf16()) GTEST_SKIP() << "this CPU has no AVX512-BF16";
  }
  static const KernelSpec& Kernel() { return kernels::kernels_mlp_linear_panels_x86_avx512bf16[0]; }
};

TEST_F(X86Avx512Bf16Panels, EqualsTheReference) { ExpectPanelsLikeReference(Kernel(), DType::kBF16); }
TEST_F(X86Avx512Bf16Panels, TakesPaddedRows) {
  ExpectPanelsLikeReference(Kernel(), {.type = DType::kBF16, .rows = 13, .n = 128, .k = 64, .bias = true, .pad = 3});
}
TEST_F(X86Avx512Bf16Panels, WithoutWeightsGivesTheBias) {
  for (bool bias : {false, true})
    ExpectPanelsLikeReference(Kernel(), {.type = DType::kBF16, .rows = 9, .n = 64, .k = 0, .bias = bias});
}

}  // namespace
}  // namespace lz::testing
