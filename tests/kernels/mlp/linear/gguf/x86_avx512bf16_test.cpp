// x86.mlp.linear.gguf.avx512bf16: like the reference for each format, number of rows and of columns.
#include "tests/kernels/mlp/linear/gguf/gguf_testing.h"

namespace lz::kernels {
extern const KernelFamily kernels_mlp_linear_gguf_x86_avx512bf16;
}  // namespace lz::kernels

namespace lz::testing_call {
namespace {

constexpr auto kPackedFormats = std::to_array<int64_t>({kQ4_0, kQ4_1, kQ8_0, kQ4_K, kQ6_K});

class X86Gguf : public ::testing::Test {
 protected:
  void SetUp() override {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512bf16")) return;
#endif
    GTEST_SKIP() << "this CPU has no AVX512-BF16";
  }
  static void ExpectLikeReference(int64_t format, int64_t rows, int64_t n, int64_t k) {
    const KernelSpec& kernel = kernels::kernels_mlp_linear_gguf_x86_avx512bf16[0];
    testing_call::ExpectLikeReference(kernel, format, kAsGiven, DType::kBF16, rows, n, k);
  }
};

TEST_F(X86Gguf, EveryFormatAndNumberOfRows) {
  for (const int64_t format : kPackedFormats)
    for (const int64_t rows : {1, 2, 3, 4, 5, 9, 17}) ExpectLikeReference(format, rows, 37, 256);
}

TEST_F(X86Gguf, EveryLengthOfRows) {
  for (const int64_t format : kPackedFormats)
    for (const int64_t blocks : {1, 2, 5, 8, 19})
      ExpectLikeReference(format, 1, 17, kBlockColumns[size_t(format)] * blocks);
}

TEST_F(X86Gguf, EmptySizes) {
  for (const int64_t format : kPackedFormats) {
    ExpectLikeReference(format, 0, 16, 256);
    ExpectLikeReference(format, 1, 0, 256);
    ExpectLikeReference(format, 2, 16, 0);
  }
}

// Every code of each of a block's 32 places: what is looked up is exact.
TEST_F(X86Gguf, EveryCode) {
  for (const int64_t format : kPackedFormats) {
    const int64_t k = kBlockColumns[size_t(format)], bytes = kBlockBytes[size_t(format)], n = 256;
    Array x(DType::kBF16, {k, k}), weight(DType::kU8, {n, bytes}), packed(DType::kU8, {n / 16, PackedBytes(format, k)});
    Array got(DType::kBF16, {k, n}), want(DType::kBF16, {k, n});
    std::vector<double> unit(size_t(k * k), 0), codes(size_t(n * bytes));
    for (int64_t i = 0; i < k; ++i) unit[size_t(i * k + i)] = 1;
    for (size_t i = 0; i < codes.size(); ++i) codes[i] = double((i * 37 + i / size_t(bytes)) % 256);
    for (int64_t row = 0; row < n; ++row)  // scales that are 1, or of K formats small
      for (const int64_t at : format == kQ6_K ? std::vector<int64_t>{208} : std::vector<int64_t>{0, 2})
        if (at == 0 || format == kQ4_1 || format == kQ4_K || format == kQ6_K)
          codes[size_t(row * bytes + at)] = 0, codes[size_t(row * bytes + at + 1)] = 0x3c;
    x.Set(unit), weight.Set(codes);
    ASSERT_EQ(Launch(kernels::ops_mlp_linear_gguf_prepack_ref[0], {&weight, &packed}, {Scalar(k), Scalar(format)}), 0);
    const std::vector<lz_scalar> scalars = {Scalar(format), Scalar(int64_t{kAsGiven})};
    ASSERT_EQ(Launch(kernels::ops_mlp_linear_gguf_ref[0], {&x, &weight, nullptr, &packed, &want}, scalars), 0);
    ASSERT_EQ(
        Launch(kernels::kernels_mlp_linear_gguf_x86_avx512bf16[0], {&x, &weight, nullptr, &packed, &got}, scalars), 0);
    EXPECT_EQ(got.Values(), want.Values()) << ChoiceName(kFormatNames, format);
  }
}

TEST_F(X86Gguf, SumsBeyondFloats) {
  ExpectExtremesLikeReference(kernels::kernels_mlp_linear_gguf_x86_avx512bf16[0], DType::kBF16);
}

TEST_F(X86Gguf, ScalesBesideInfiniteInput) {
  ExpectScalesBesideInfiniteInput(kernels::kernels_mlp_linear_gguf_x86_avx512bf16[0], DType::kBF16);
}

}  // namespace
}  // namespace lz::testing_call
