// onednn.mlp.linear: equals the reference at every remainder, in parts and on many threads.
#include "tests/kernels/mlp/linear/library_testing.h"

namespace lz::kernels {
extern const KernelFamily kernels_mlp_linear_onednn;
}  // namespace lz::kernels

namespace lz::testing {
namespace {

class OneDnn : public LibraryTest {
 protected:
  OneDnn() : LibraryTest({.kernel = kernels::kernels_mlp_linear_onednn[0]}) {}
};

TEST_F(OneDnn, EqualsTheReference) { ExpectLikeTheReference(); }
TEST_F(OneDnn, EqualsTheReferenceInParts) { ExpectLikeTheReferenceInParts(); }
TEST_F(OneDnn, EqualsTheReferenceOnManyThreads) { ExpectLikeTheReferenceOnManyThreads(); }

class OneDnnBf16 : public LibraryTest {
 protected:
  OneDnnBf16() : LibraryTest({.kernel = kernels::kernels_mlp_linear_onednn[1], .type = DType::kBF16}) {}
  void SetUp() override {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512bw")) return LibraryTest::SetUp();
#endif
    GTEST_SKIP() << "this CPU has no AVX-512, oneDNN has no bf16 without";
  }
};

TEST_F(OneDnnBf16, EqualsTheReference) { ExpectLikeTheReference(); }
TEST_F(OneDnnBf16, EqualsTheReferenceInParts) { ExpectLikeTheReferenceInParts(); }
TEST_F(OneDnnBf16, EqualsTheReferenceOnManyThreads) { ExpectLikeTheReferenceOnManyThreads(); }

}  // namespace
}  // namespace lz::testing
