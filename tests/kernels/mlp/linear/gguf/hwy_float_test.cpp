// hwy.mlp.linear.gguf.float: like the reference on every instruction set, for each format, dtype and number of rows.
#include "tests/kernels/mlp/linear/gguf/gguf_testing.h"
#include "tests/kernels/targets.h"

namespace lz::kernels {
extern const KernelFamily kernels_mlp_linear_gguf_hwy_float;
}  // namespace lz::kernels

namespace lz::testing_call {
namespace {
class HwyGgufFloat : public testing::OnEachTarget {};
INSTANTIATE_TEST_SUITE_P(Targets, HwyGgufFloat, testing::AllTargets(), testing::NameOfTarget);

TEST_P(HwyGgufFloat, LikeTheReference) {
  const KernelSpec& kernel = kernels::kernels_mlp_linear_gguf_hwy_float[0];
  for (const Format format : {kQ4_0, kQ4_1, kQ8_0, kQ4_K, kQ6_K}) {
    for (const int64_t rows : {1, 2, 3, 4, 9})
      ExpectLikeReference(kernel, format, kAsGiven, DType::kF32, rows, 37, 256);
    for (const DType type : {DType::kBF16, DType::kF16})
      ExpectLikeReference(kernel, format, kAsGiven, type, 5, 16, 512);
  }
}

TEST_P(HwyGgufFloat, SumsBeyondFloats) {
  for (const DType type : {DType::kF32, DType::kBF16})
    ExpectExtremesLikeReference(kernels::kernels_mlp_linear_gguf_hwy_float[0], type);
}

TEST_P(HwyGgufFloat, ScalesBesideInfiniteInput) {
  for (const DType type : {DType::kF32, DType::kBF16})
    ExpectScalesBesideInfiniteInput(kernels::kernels_mlp_linear_gguf_hwy_float[0], type);
}

}  // namespace
}  // namespace lz::testing_call
