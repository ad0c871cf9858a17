// x86.mlp.linear.gguf.avx512vnni: like the reference for each format and dtype, on both sides of every tile,
// micro_panel and panel.
#include "platform/device.h"
#include "tests/kernels/mlp/linear/gguf/gguf_testing.h"

namespace lz::kernels {
extern const KernelFamily kernels_mlp_linear_gguf_x86_avx512vnni;
}  // namespace lz::kernels

namespace lz::testing_call {
namespace {

class X86VnniGguf : public ::testing::TestWithParam<Format> {
 protected:
  void SetUp() override {
    if (!(HostCpu().fact(DeviceField::kIsa) & kIsaAvx512Vnni)) GTEST_SKIP() << "this CPU has no AVX-512 VNNI";
  }
  void Expect(DType type, int64_t rows, int64_t n, int64_t k) {
    const KernelSpec& kernel = kernels::kernels_mlp_linear_gguf_x86_avx512vnni[0];
    ExpectLikeReference(kernel, GetParam(), kInt8, type, rows, n, k);
  }
};
INSTANTIATE_TEST_SUITE_P(Formats, X86VnniGguf, ::testing::Values(kQ4_0, kQ4_1, kQ8_0, kQ4_K, kQ6_K),
                         [](const auto& format) { return std::string(ChoiceName(kFormatNames, format.param)); });

TEST_P(X86VnniGguf, AtEveryRemainder) {
  for (const int64_t rows : {1, 3, 4, 5, 9})
    for (const int64_t n : {1, 15, 16, 33, 48, 65}) Expect(DType::kF32, rows, n, 256);
}

TEST_P(X86VnniGguf, WithoutValuesToSum) { Expect(DType::kF32, 5, 20, 0); }

TEST_P(X86VnniGguf, InEveryDtype) {
  for (const DType type : {DType::kBF16, DType::kF16}) Expect(type, 7, 49, 512);
}

TEST_P(X86VnniGguf, OverSeveralPanelsAndBlocksOfStrips) {
  Expect(DType::kF32, 5, 50, 2048 + 256);
  Expect(DType::kF32, 600, 17, 2048);
}

}  // namespace
}  // namespace lz::testing_call
