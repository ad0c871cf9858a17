// x86.mlp.linear.quantized.avx512bf16: like the reference for each format, granularity, number of rows
// and remainder.
#include <cmath>

#include "tests/kernels/mlp/linear/quantized/quantized_testing.h"

namespace lz::kernels {
extern const KernelFamily kernels_mlp_linear_quantized_x86_avx512bf16;
}  // namespace lz::kernels

namespace lz::testing_call {
namespace {

class X86Quantized : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi")) return;
#endif
    GTEST_SKIP() << "this CPU has no AVX512-BF16 and VBMI";
  }
  static const KernelSpec& Kernel() { return kernels::kernels_mlp_linear_quantized_x86_avx512bf16[0]; }
  static void ExpectLikeReference(QuantizedCall c) {
    c.type = GetParam();
    c.tensor_scale = c.format == kNVFP4;
    ExpectLikeQuantizedReference(Kernel(), c);
    if (kQuantInfo[size_t(c.format)].pack != 2 || c.k % 32 != 0) return;
    c.packed = true;
    ExpectLikeQuantizedReference(Kernel(), c);
  }
  // The output for one row of ones and the given codes and scale of one column.
  static double OneColumn(int64_t format, double code, DType scale_type, double scale_value, int64_t k) {
    const QuantInfo& info = kQuantInfo[size_t(format)];
    Array x(GetParam(), {1, k}), weight(info.dtype == DType::kI8 ? DType::kI8 : DType::kU8, {1, k / info.pack});
    Array scale(scale_type, {1, info.group ? k / info.group : 1}), got(GetParam(), {1, 1});
    x.Set(std::vector<double>(size_t(k), 1));
    weight.Set(std::vector<double>(size_t(k / info.pack), code));
    weight.Become(info.dtype);
    scale.Set(std::vector<double>(size_t(scale.numel()), scale_value));
    EXPECT_EQ(Launch(Kernel(), {&x, &weight, &scale, nullptr, nullptr, nullptr, nullptr, &got}, {Scalar(format)}), 0);
    return got.Values()[0];
  }
};
INSTANTIATE_TEST_SUITE_P(Inputs, X86Quantized, ::testing::Values(DType::kBF16, DType::kF32, DType::kF16),
                         [](const auto& p) { return std::string(Info(p.param).name); });

int64_t GroupOf(int64_t format) { return kQuantInfo[size_t(format)].group; }

TEST_P(X86Quantized, EveryFormatAndNumberOfRows) {
  for (int64_t format = 0; format < kQuantFormats; ++format)
    for (const int64_t rows : {1, 2, 3, 4, 5, 8, 9, 19})
      ExpectLikeReference({.format = format,
                           .rows = rows,
                           .groups = GroupOf(format) ? 96 / GroupOf(format) : 3,
                           .bias = rows % 2 == 0,
                           .zero_point = IsUnsigned(format)});
}

// Scales of a row, of 16 values to more than a step takes, and groups that steps cut.
TEST_P(X86Quantized, EveryGranularity) {
  for (int64_t format = 0; format < kMXFP8E4M3; ++format)
    for (const int64_t groups : {1, 2, 3, 4, 6, 8, 12, 24, 48})
      for (const bool zero_point : {false, true})
        if (IsInteger(format) || !zero_point)
          ExpectLikeReference(
              {.format = format, .rows = 2, .n = 7, .k = 768, .groups = groups, .zero_point = zero_point});
}

TEST_P(X86Quantized, EveryLengthOfRows) {
  for (int64_t format = 0; format < kQuantFormats; ++format)
    for (const int64_t k : {32, 64, 96, 128, 160, 544, 4096, 4128, 8192, 16416})
      for (const int64_t group : {int64_t{16}, int64_t{32}, k})
        if (GroupOf(format) == 0 || GroupOf(format) == group)
          ExpectLikeReference({.format = format,
                               .rows = 1 + k / 32 % 2,
                               .n = 5,
                               .k = k,
                               .groups = k / group,
                               .zero_point = IsUnsigned(format)});
}

TEST_P(X86Quantized, PaddedRowsAndNumbersOfColumns) {
  for (const int64_t n : {1, 2, 3, 4, 5, 64, 67})
    for (const int64_t format : {int64_t{kInt8}, int64_t{kUInt4}, int64_t{kFP8E4M3}})
      ExpectLikeReference({.format = format, .rows = 3, .n = n, .zero_point = format != kFP8E4M3, .pad = 7});
}

TEST_P(X86Quantized, EmptySizes) {
  ExpectLikeReference({.format = kInt8, .rows = 0});
  ExpectLikeReference({.format = kInt8, .n = 0});
  ExpectLikeReference({.format = kInt8, .k = 0, .groups = 1, .bias = true});
}

// One column for each code, alone in its row: the output is the code's value, infinities and NaN too.
TEST_P(X86Quantized, EveryCodeExactly) {
  for (const int64_t format : {kInt8, kUInt8, kInt4, kUInt4, kFP8E4M3, kFP8E5M2}) {
    const int64_t pack = kQuantInfo[size_t(format)].pack;
    Array x(GetParam(), {1, 16}), weight(format == kInt8 ? DType::kI8 : DType::kU8, {256, 16 / pack});
    Array scale(DType::kF32, {256, 1}), zero(DType::kI32, {256, 1});
    Array got(GetParam(), {1, 256}), want(GetParam(), {1, 256});
    std::vector<double> one(16), codes(size_t(256 * 16 / pack));
    one[0] = 1;
    for (size_t i = 0; i < 256; ++i) codes[i * size_t(16 / pack)] = double(i) - (format == kInt8 ? 128 : 0);
    x.Set(one), weight.Set(codes), zero.Set(std::vector<double>(256));
    scale.Set(std::vector<double>(256, 1));
    weight.Become(kQuantInfo[size_t(format)].dtype);
    for (auto [kernel, out] : {std::pair(&kernels::ops_mlp_linear_quantized_ref[0], &want), std::pair(&Kernel(), &got)})
      ASSERT_EQ(
          Launch(*kernel, {&x, &weight, &scale, nullptr, IsUnsigned(format) ? &zero : nullptr, nullptr, nullptr, out},
                 {Scalar(format)}),
          0);
    const std::vector<double> expected = want.Values(), values = got.Values();
    for (size_t i = 0; i < 256; ++i) {
      if (std::isnan(expected[i])) {
        EXPECT_TRUE(std::isnan(values[i])) << ChoiceName(kQuantNames, format) << " code " << i;
      } else {
        EXPECT_EQ(values[i], expected[i]) << ChoiceName(kQuantNames, format) << " code " << i;
      }
    }
  }
}

TEST_P(X86Quantized, WeightsBesideInfiniteInput) {
  for (const int64_t rows : {1, 5}) ExpectWeightsBesideInfiniteInput(Kernel(), GetParam(), rows);
}

// Where FP32 has no number for a part of the sum, or none for a scale.
TEST_P(X86Quantized, ExtremeScales) {
  if (GetParam() == DType::kF16) GTEST_SKIP() << "float16 has none of these numbers";
  EXPECT_TRUE(std::isnan(OneColumn(kInt8, 0, DType::kF32, INFINITY, 16)));
  EXPECT_EQ(OneColumn(kInt8, 2, DType::kF32, INFINITY, 16), INFINITY);
  EXPECT_EQ(OneColumn(kInt8, 2, DType::kF32, 0x1p-130, 16), 0x1p-125);
  EXPECT_EQ(OneColumn(kFP8E4M3, 0x38, DType::kF32, 0x1p-130, 16), 0x1p-126);
  EXPECT_EQ(OneColumn(kFP8E4M3, 0x38, DType::kF32, 0x1p122, 16), 0x1p126);
  EXPECT_EQ(OneColumn(kMXFP4, 0x22, DType::kU8, 0, 32), 0x1p-122);
  EXPECT_TRUE(std::isnan(OneColumn(kMXFP4, 0x22, DType::kU8, 255, 32)));
}

}  // namespace
}  // namespace lz::testing_call
