// hwy.mlp.linear.gguf.int8: like the reference on every instruction set, for each format, dtype and number of rows.
#include "tests/kernels/mlp/linear/gguf/gguf_testing.h"
#include "tests/kernels/targets.h"

namespace lz::kernels {
extern const KernelFamily kernels_mlp_linear_gguf_hwy_int8;
}  // namespace lz::kernels

namespace lz::testing_call {
namespace {
class HwyGgufInt8 : public testing::OnEachTarget {};
INSTANTIATE_TEST_SUITE_P(Targets, HwyGgufInt8, testing::AllTargets(), testing::NameOfTarget);

TEST_P(HwyGgufInt8, LikeTheReference) {
  const KernelSpec& kernel = kernels::kernels_mlp_linear_gguf_hwy_int8[0];
  for (const Format format : {kQ4_0, kQ4_1, kQ8_0, kQ4_K, kQ6_K}) {
    for (const int64_t rows : {1, 2, 3, 4, 9}) ExpectLikeReference(kernel, format, kInt8, DType::kF32, rows, 37, 256);
    for (const DType type : {DType::kBF16, DType::kF16}) ExpectLikeReference(kernel, format, kInt8, type, 5, 16, 512);
  }
}

}  // namespace
}  // namespace lz::testing_call
