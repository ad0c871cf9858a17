// hwy.mlp.linear.panels: equals the reference on both sides of every block and tile, inside its tensors.
#include "tests/kernels/mlp/linear/panels/panels_testing.h"
#include "tests/kernels/targets.h"

namespace lz::kernels {
extern const KernelFamily kernels_mlp_linear_panels_hwy;
}  // namespace lz::kernels

namespace lz::testing {
namespace {

const KernelSpec& Kernel() { return kernels::kernels_mlp_linear_panels_hwy[0]; }

class HwyPanels : public OnEachTarget {};
INSTANTIATE_TEST_SUITE_P(Targets, HwyPanels, AllTargets(), NameOfTarget);

TEST_P(HwyPanels, EqualsTheReference) {
  for (DType type : {DType::kF32, DType::kBF16}) ExpectPanelsLikeReference(Kernel(), type);
}
TEST_P(HwyPanels, TakesPaddedRows) {
  for (DType type : {DType::kF32, DType::kBF16})
    ExpectPanelsLikeReference(Kernel(), {.type = type, .rows = 13, .n = 128, .k = 64, .bias = true, .pad = 3});
}
TEST_P(HwyPanels, WithoutWeightsGivesTheBias) {
  for (DType type : {DType::kF32, DType::kBF16})
    for (bool bias : {false, true})
      ExpectPanelsLikeReference(Kernel(), {.type = type, .rows = 9, .n = 64, .k = 0, .bias = bias});
}

}  // namespace
}  // namespace lz::testing
