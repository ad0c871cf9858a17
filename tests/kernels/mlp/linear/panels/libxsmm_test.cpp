// libxsmm.mlp.linear.panels: equals the reference, in parts and on many threads, inside its tensors.
#include "tests/kernels/mlp/linear/panels/panels_testing.h"

namespace lz::kernels {
extern const KernelFamily kernels_mlp_linear_panels_libxsmm;
}  // namespace lz::kernels

namespace lz::testing {
namespace {

class LibxsmmPanels : public PanelsLibraryTest {
 protected:
  LibxsmmPanels() : PanelsLibraryTest(kernels::kernels_mlp_linear_panels_libxsmm, "libxsmm.mlp.linear.panels") {}
};

TEST_F(LibxsmmPanels, EqualsTheReference) { ExpectLikeReference(); }
TEST_F(LibxsmmPanels, EqualsTheReferenceOnManyThreads) { ExpectLikeReferenceOnManyThreads(); }

}  // namespace
}  // namespace lz::testing
