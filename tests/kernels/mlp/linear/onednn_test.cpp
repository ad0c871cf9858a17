// onednn.mlp.linear: equals the reference at every remainder, in parts and on many threads.
#include "tests/kernels/mlp/linear/library_testing.h"

namespace lz::kernels {
extern const KernelFamily kernels_mlp_linear_onednn;
}  // namespace lz::kernels

namespace lz::testing {
namespace {

class OneDnn : public LibraryTest {
 protected:
  OneDnn() : LibraryTest(kernels::kernels_mlp_linear_onednn) {}
};

TEST_F(OneDnn, EqualsTheReference) { ExpectLikeTheReference(); }
TEST_F(OneDnn, EqualsTheReferenceInParts) { ExpectLikeTheReferenceInParts(); }
TEST_F(OneDnn, EqualsTheReferenceOnManyThreads) { ExpectLikeTheReferenceOnManyThreads(); }

}  // namespace
}  // namespace lz::testing
