// openblas.mlp.linear: equals the reference at every remainder, in parts and on many threads.
#include "tests/kernels/mlp/linear/library_testing.h"

namespace lz::kernels {
extern const KernelFamily kernels_mlp_linear_openblas;
}  // namespace lz::kernels

namespace lz::testing {
namespace {

class OpenBlas : public LibraryTest {
 protected:
  OpenBlas() : LibraryTest({.kernel = kernels::kernels_mlp_linear_openblas[0]}) {}
};

TEST_F(OpenBlas, EqualsTheReference) { ExpectLikeTheReference(); }
TEST_F(OpenBlas, WithoutWeightsGivesTheBias) {
  for (bool bias : {false, true}) Expect({.rows = 5, .n = 70, .k = 0, .bias = bias});
}
TEST_F(OpenBlas, EqualsTheReferenceInParts) { ExpectLikeTheReferenceInParts(); }
TEST_F(OpenBlas, EqualsTheReferenceOnManyThreads) { ExpectLikeTheReferenceOnManyThreads(); }

}  // namespace
}  // namespace lz::testing
