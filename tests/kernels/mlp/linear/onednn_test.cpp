// onednn.mlp.linear: equals the reference at every remainder, in parts and on many threads.
#include "kernels/gemm/onednn_parallel.h"
#include "tests/kernels/kernel_of.h"
#include "tests/kernels/mlp/linear/library_testing.h"

namespace lz::kernels {
extern const KernelFamily kernels_mlp_linear_onednn, kernels_mlp_linear_panels_onednn;
}  // namespace lz::kernels

namespace lz::testing {
namespace {

class OneDnn : public LibraryTest {
 protected:
  OneDnn() : LibraryTest({.kernel = KernelOf(kernels::kernels_mlp_linear_onednn, "onednn.mlp.linear")}) {}
};

TEST_F(OneDnn, EqualsTheReference) { ExpectLikeTheReference(); }
TEST_F(OneDnn, EqualsTheReferenceInParts) { ExpectLikeTheReferenceInParts(); }
TEST_F(OneDnn, EqualsTheReferenceOnManyThreads) { ExpectLikeTheReferenceOnManyThreads(); }

class OneDnnBf16 : public LibraryTest {
 protected:
  OneDnnBf16()
      : LibraryTest(
            {.kernel = KernelOf(kernels::kernels_mlp_linear_onednn, "onednn.mlp.linear_bf16"), .type = DType::kBF16}) {}
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

// A library whose bf16 fails is told by the rows of bf16, and by no other.
TEST_F(OneDnnBf16, IsTriedByWhatItComputes) {
  using namespace onednn;
  EXPECT_EQ(KernelOf(kernels::kernels_mlp_linear_onednn, "onednn.mlp.linear_bf16").open, (&OpenFor<kBF16, false>));
  EXPECT_EQ(KernelOf(kernels::kernels_mlp_linear_panels_onednn, "onednn.mlp.linear.panels_bf16").open,
            (&OpenFor<kBF16, true>));
  const Api whole = g_api;
  static const auto describe = g_api.desc_create;
  g_api.desc_create = [](Object* desc, int ndims, const int64_t* dims, int type, const int64_t* strides) {
    return type == kBF16 ? 1 : describe(desc, ndims, dims, type, strides);
  };
  std::thread([] {  // which has no primitives yet
    EXPECT_FALSE((MultipliesRight<kBF16, false>()));
    EXPECT_FALSE((MultipliesRight<kBF16, true>()));
    EXPECT_TRUE((MultipliesRight<kF32, false>()));
  })
      .join();
  g_api = whole;
  EXPECT_TRUE((MultipliesRight<kBF16, false>()));
}

}  // namespace
}  // namespace lz::testing
