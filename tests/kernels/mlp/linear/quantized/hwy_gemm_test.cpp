// hwy.mlp.linear.quantized.gemm: like the reference on every instruction set, for each format, dtype, number of rows
// and granularity; every code of every format exactly.
#include "tests/kernels/mlp/linear/quantized/quantized_testing.h"
#include "tests/kernels/targets.h"

namespace lz::kernels {
extern const KernelFamily kernels_mlp_linear_quantized_hwy_gemm;
}  // namespace lz::kernels

namespace lz::testing_call {
namespace {

class HwyQuantizedGemm : public testing::OnEachTarget {};
INSTANTIATE_TEST_SUITE_P(Targets, HwyQuantizedGemm, testing::AllTargets(), testing::NameOfTarget);

const KernelSpec& Kernel() { return kernels::kernels_mlp_linear_quantized_hwy_gemm[0]; }
void ExpectLikeReference(const QuantizedCall& c) { ExpectLikeQuantizedReference(Kernel(), c); }

TEST_P(HwyQuantizedGemm, EveryFormatDTypeAndNumberOfRows) {
  for (int64_t format = 0; format < kQuantFormats; ++format) {
    const int64_t group = kQuantInfo[size_t(format)].group;
    for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
      for (const int64_t rows : {1, 2, 7, 99, 194}) {
        ExpectLikeReference({.format = format,
                             .type = type,
                             .rows = rows,
                             .groups = group ? 96 / group : 3,
                             .bias = rows % 2 == 1,
                             .tensor_scale = format == kNVFP4});
      }
    }
  }
}

TEST_P(HwyQuantizedGemm, PackedWeights) {
  for (const int64_t format : {int64_t{kInt4}, int64_t{kUInt4}, int64_t{kMXFP4}})
    ExpectLikeReference({.format = format, .rows = 5, .zero_point = format == kUInt4, .packed = true});
  ExpectLikeReference({.format = kNVFP4, .rows = 5, .groups = 6, .tensor_scale = true, .packed = true});
}

TEST_P(HwyQuantizedGemm, GroupsOfAnyLength) {
  for (const int64_t groups : {1, 3, 11, 33})
    for (const int64_t format : {int64_t{kInt8}, int64_t{kUInt8}, int64_t{kFP8E4M3}})
      ExpectLikeReference({.format = format, .rows = 6, .k = 33, .groups = groups, .zero_point = format == kUInt8});
  ExpectLikeReference({.format = kInt4, .rows = 6, .k = 42, .groups = 7});
}

TEST_P(HwyQuantizedGemm, LongRowsAndOddNumbersOfColumns) {
  for (const int64_t rows : {3, 17})
    for (const int64_t k : {1023, 1025, 2050})
      for (const int64_t n : {1, 33, 66})
        ExpectLikeReference({.format = kFP8E5M2, .rows = rows, .n = n, .k = k, .groups = 1, .pad = 7});
}

TEST_P(HwyQuantizedGemm, EmptySizes) {
  ExpectLikeReference({.format = kInt8, .rows = 0});
  ExpectLikeReference({.format = kInt8, .n = 0});
  ExpectLikeReference({.format = kInt8, .k = 0, .groups = 1, .bias = true});
}

// One column for each code: the output is the code's value, infinities and NaN too.
TEST_P(HwyQuantizedGemm, EveryCodeExactly) {
  for (const int64_t format : {int64_t{kInt8}, int64_t{kUInt8}, int64_t{kFP8E4M3}, int64_t{kFP8E5M2}}) {
    const DType type = format == kInt8 ? DType::kI8 : DType::kU8;
    Array x(DType::kF32, {1, 1}), weight(type, {256, 1}), scale(DType::kF32, {1, 1});
    Array got(DType::kF32, {1, 256}), want(DType::kF32, {1, 256});
    x.Set({1}), scale.Set({1});
    std::vector<double> codes(256);
    std::iota(codes.begin(), codes.end(), type == DType::kI8 ? -128 : 0);
    weight.Set(codes);
    for (auto [kernel, out] : {std::pair(&kernels::ops_mlp_linear_quantized_ref[0], &want), std::pair(&Kernel(), &got)})
      ASSERT_EQ(Launch(*kernel, {&x, &weight, &scale, nullptr, nullptr, nullptr, nullptr, out}, {Scalar(format)}), 0);
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

TEST_P(HwyQuantizedGemm, ExtremeScalesOfE5M2) { ExpectExtremeScalesOfE5M2(Kernel(), {1, 3, 40}); }
TEST_P(HwyQuantizedGemm, WeightsBesideInfiniteInput) { ExpectWeightsBesideInfiniteInput(Kernel(), {1, 3, 40}); }

}  // namespace
}  // namespace lz::testing_call
