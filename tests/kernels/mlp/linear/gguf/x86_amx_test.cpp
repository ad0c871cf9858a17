// x86.mlp.linear.gguf.amx: like the reference for each format and dtype, on both sides of every tile, micro_panel and
// panel.
#include "platform/device.h"
#include "tests/kernels/mlp/linear/gguf/gguf_testing.h"

namespace lz::kernels {
extern const KernelFamily kernels_mlp_linear_gguf_x86_amx;
}  // namespace lz::kernels

namespace lz::testing_call {
namespace {

class X86AmxGguf : public ::testing::TestWithParam<Format> {
 protected:
  void SetUp() override {
    if (!(HostCpu().fact(DeviceField::kIsa) & kIsaAmxInt8)) GTEST_SKIP() << "this CPU has no AMX for int8";
  }
  void Expect(DType type, int64_t rows, int64_t n, int64_t k) {
    ExpectLikeReference(kernels::kernels_mlp_linear_gguf_x86_amx[0], GetParam(), kInt8, type, rows, n, k);
  }
};
INSTANTIATE_TEST_SUITE_P(Formats, X86AmxGguf, ::testing::Values(kQ4_0, kQ4_1, kQ8_0, kQ4_K, kQ6_K),
                         [](const auto& format) { return std::string(ChoiceName(kFormatNames, format.param)); });

TEST_P(X86AmxGguf, AtEveryRemainder) {
  for (const int64_t rows : {1, 15, 16, 17, 33})
    for (const int64_t n : {1, 15, 16, 37}) Expect(DType::kF32, rows, n, 256);
}

TEST_P(X86AmxGguf, WithoutValuesToSum) { Expect(DType::kF32, 17, 20, 0); }

TEST_P(X86AmxGguf, InEveryDtype) {
  for (const DType type : {DType::kBF16, DType::kF16}) Expect(type, 19, 33, 512);
}

TEST_P(X86AmxGguf, OverSeveralPanelsAndBlocksOfStrips) {
  Expect(DType::kF32, 17, 20, 4096 + 256);
  Expect(DType::kF32, 600, 17, 2048);
}

}  // namespace
}  // namespace lz::testing_call
