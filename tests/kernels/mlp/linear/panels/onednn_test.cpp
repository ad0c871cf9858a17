// onednn.mlp.linear.panels: equals the reference, in parts and on many threads, inside its tensors.
#include "tests/kernels/mlp/linear/panels/panels_testing.h"

namespace lz::kernels {
extern const KernelFamily kernels_mlp_linear_panels_onednn;
}  // namespace lz::kernels

namespace lz::testing {
namespace {

class OneDnnPanels : public PanelsLibraryTest {
 protected:
  OneDnnPanels() : PanelsLibraryTest(kernels::kernels_mlp_linear_panels_onednn, "onednn.mlp.linear.panels") {}
};

TEST_F(OneDnnPanels, EqualsTheReference) { ExpectLikeReference(); }
TEST_F(OneDnnPanels, EqualsTheReferenceOnManyThreads) { ExpectLikeReferenceOnManyThreads(); }

}  // namespace
}  // namespace lz::testing
