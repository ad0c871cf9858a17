// hwy.mlp.linear.quantized.gemv: like the reference on every instruction set, for each format, dtype and number of
// rows.
#include "tests/kernels/mlp/linear/quantized/quantized_testing.h"
#include "tests/kernels/targets.h"

namespace lz::kernels {
extern const KernelFamily kernels_mlp_linear_quantized_hwy_gemv;
}  // namespace lz::kernels

namespace lz::testing_call {
namespace {

class HwyQuantizedGemv : public testing::OnEachTarget {};
INSTANTIATE_TEST_SUITE_P(Targets, HwyQuantizedGemv, testing::AllTargets(), testing::NameOfTarget);

void ExpectLikeReference(QuantizedCall c) {
  const KernelSpec& kernel = kernels::kernels_mlp_linear_quantized_hwy_gemv[0];
  ExpectLikeQuantizedReference(kernel, c);
  if (kQuantInfo[size_t(c.format)].pack != 2 || c.k % 32 != 0) return;
  c.packed = true;
  ExpectLikeQuantizedReference(kernel, c);
}

TEST_P(HwyQuantizedGemv, EveryFormatDTypeAndNumberOfRows) {
  for (const int64_t format : {kInt8, kUInt8, kInt4, kUInt4, kFP8E4M3, kFP8E5M2, kMXFP8E4M3, kMXFP8E5M2, kMXFP4})
    for (const DType type : {DType::kF32, DType::kF16, DType::kBF16})
      for (int64_t rows = 1; rows <= 4; ++rows)
        ExpectLikeReference({.format = format, .type = type, .rows = rows, .bias = rows % 2 == 0});
  ExpectLikeReference({.format = kNVFP4, .groups = 6, .tensor_scale = true});
}

TEST_P(HwyQuantizedGemv, EveryGranularity) {
  for (const int64_t groups : {1, 2, 3, 6})
    for (const int64_t format : {int64_t{kInt8}, int64_t{kInt4}})
      ExpectLikeReference({.format = format, .rows = 2, .groups = groups, .zero_point = groups != 2});
}

// Whole units of 16 values, in blocks of 4096 and what is left; of 4-bit codes half a chunk of 32 at the end.
TEST_P(HwyQuantizedGemv, EveryLengthOfRows) {
  for (const int64_t k : {16, 48, 64, 112, 128, 4096, 4112, 4256})
    for (const int64_t format : {kInt8, kUInt4, kFP8E4M3, kFP8E5M2})
      for (const int64_t rows : {1, 2, 4})
        for (const int64_t groups : {int64_t{1}, k / 16})
          ExpectLikeReference({.format = format, .rows = rows, .n = 3, .k = k, .groups = groups});
}

TEST_P(HwyQuantizedGemv, NaNOfE4M3) {
  for (const int64_t k : {16, 64, 80, 272}) {
    for (const int64_t at : {int64_t{0}, k / 2, k - 1}) {
      for (const double code : {0x7f, 0xff}) {
        Array x(DType::kF32, {1, k}), weight(DType::kU8, {2, k}), scale(DType::kF32, {2, 1}), got(DType::kF32, {1, 2});
        x.FillNormal(1);
        std::vector<double> codes(size_t(2 * k), 0x7e);  // 448
        codes[size_t(at)] = code;
        weight.Set(codes);
        weight.Become(DType::kF8E4M3);
        scale.Set({1, 1});
        ASSERT_EQ(Launch(kernels::kernels_mlp_linear_quantized_hwy_gemv[0],
                         {&x, &weight, &scale, nullptr, nullptr, nullptr, nullptr, &got}, {Scalar(kFP8E4M3)}),
                  0);
        EXPECT_TRUE(std::isnan(got.Values()[0])) << k << " " << at;
        EXPECT_TRUE(std::isfinite(got.Values()[1]));
      }
    }
  }
}

// Scales at both ends of FP32's range, times codes whose values bring the products back into it.
TEST_P(HwyQuantizedGemv, ExtremeScalesOfE4M3) {
  const auto one = [](double code, double scale_value, double x_value) {
    Array x(DType::kF32, {1, 16}), weight(DType::kU8, {1, 16}), scale(DType::kF32, {1, 1}), got(DType::kF32, {1, 1});
    x.Set(std::vector<double>(16, x_value));
    weight.Set(std::vector<double>(16, code));
    weight.Become(DType::kF8E4M3);
    scale.Set({scale_value});
    EXPECT_EQ(Launch(kernels::kernels_mlp_linear_quantized_hwy_gemv[0],
                     {&x, &weight, &scale, nullptr, nullptr, nullptr, nullptr, &got}, {Scalar(kFP8E4M3)}),
              0);
    return got.Values()[0];
  };
  EXPECT_EQ(one(0x01, 0x1p126, 1), 0x1p121);                                                   // 2^-9
  EXPECT_EQ(one(0x38, 0x1p-145, 0x1p100), 0x1p-41);                                            // 1
  EXPECT_EQ(one(0x3b, 0x1.9p-130, 1), 16 * double(float(1.375 * double(float(0x1.9p-130)))));  // a denormal scale
}

TEST_P(HwyQuantizedGemv, PaddedRowsAndOddNumbersOfColumns) {
  for (const int64_t n : {1, 2, 5, 64})
    for (const int64_t format : {int64_t{kInt8}, int64_t{kUInt4}})
      ExpectLikeReference({.format = format, .rows = 3, .n = n, .zero_point = true, .pad = 7});
}

TEST_P(HwyQuantizedGemv, EmptySizes) {
  ExpectLikeReference({.format = kInt8, .rows = 0});
  ExpectLikeReference({.format = kInt8, .n = 0});
  ExpectLikeReference({.format = kInt8, .k = 0, .groups = 1, .bias = true});
}

TEST_P(HwyQuantizedGemv, ExtremeScalesOfE5M2) {
  ExpectExtremeScalesOfE5M2(kernels::kernels_mlp_linear_quantized_hwy_gemv[0], {1, 2, 4});
}

TEST_P(HwyQuantizedGemv, WeightsBesideInfiniteInput) {
  ExpectWeightsBesideInfiniteInput(kernels::kernels_mlp_linear_quantized_hwy_gemv[0], {1, 2, 4});
}

}  // namespace
}  // namespace lz::testing_call
