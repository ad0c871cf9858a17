// cpu.mlp.linear.panels.prepack: bit for bit the reference's.
#include "ops/mlp/linear/panels/prepack.h"
#include "tests/kernels/call.h"

namespace lz::kernels {
extern const KernelFamily kernels_mlp_linear_panels_prepack_cpu, ops_mlp_linear_panels_prepack_ref;
}  // namespace lz::kernels

namespace lz::testing_call {
namespace {

TEST(PanelsPrepackCpu, EqualsTheReference) {
  for (DType type : {DType::kF32, DType::kBF16}) {
    for (int64_t n : {0, 64, 320}) {
      for (int64_t k : {0, 32, 96}) {
        Array weight(type, {n, k}), want(type, {n / 64, k, 64}), got(type, {n / 64, k, 64});
        weight.FillNormal(1);
        ASSERT_EQ(Launch(kernels::ops_mlp_linear_panels_prepack_ref[0], {&weight, &want}, {}), 0);
        ASSERT_EQ(Launch(kernels::kernels_mlp_linear_panels_prepack_cpu[0], {&weight, &got}, {}), 0);
        EXPECT_EQ(got.bytes(), want.bytes());
      }
    }
  }
}

}  // namespace
}  // namespace lz::testing_call
