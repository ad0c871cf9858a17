// Calls of kernels of mlp.linear.quantized on random codes and scales, compared with the reference.
#pragma once

#include <limits>

#include "ops/mlp/linear/quantized.h"
#include "tests/kernels/call.h"

namespace lz::kernels {
extern const KernelFamily ops_mlp_linear_quantized_ref, ops_mlp_linear_prepack_ref;
}  // namespace lz::kernels

namespace lz::testing_call {
using namespace lz::ops;

struct QuantizedCall {
  int64_t format;
  DType type = DType::kF32;
  int64_t rows = 1, n = 19, k = 96, groups = 3;
  bool bias = false, zero_point = false, tensor_scale = false, packed = false;
  int64_t pad = 0;
};

inline void FillBetween(Array* a, uint32_t seed, int low, int high) {
  std::mt19937 generator(seed);
  std::uniform_int_distribution<int> integers(low, high);
  std::vector<double> values(size_t(a->numel()));
  for (double& v : values) v = integers(generator);
  a->Set(values);
}
// Codes of finite values: all of an integer's, an FP8's without infinities and NaN.
inline void FillCodes(Array* a, DType dtype, uint32_t seed) {
  if (dtype == DType::kI8) return FillBetween(a, seed, -127, 127);
  if (dtype != DType::kF8E4M3 && dtype != DType::kF8E5M2) return FillBetween(a, seed, 0, 255);
  const int finite = dtype == DType::kF8E4M3 ? 127 : 124;  // of each sign
  FillBetween(a, seed, 0, 2 * finite - 1);
  std::vector<double> codes = a->Values();
  for (double& code : codes) code += code < finite ? 0 : 128 - finite;
  a->Set(codes);
}

inline void ExpectLikeQuantizedReference(const KernelSpec& kernel, const QuantizedCall& c) {
  const QuantInfo& info = kQuantInfo[size_t(c.format)];
  const bool e8m0 = info.scales == kE8M0Scales, e4m3 = info.scales == kE4M3Scales;
  Array x(c.type, {c.rows, c.k}, c.pad), bias(c.type, {c.n}), outer(DType::kF32, {c.n, 1});
  Array weight(info.dtype == DType::kI8 ? DType::kI8 : DType::kU8, {c.n, c.k / info.pack}, c.pad);
  Array scale(e8m0 || e4m3 ? DType::kU8 : DType::kF32, {c.n, c.groups}, c.pad), zero(DType::kI32, {c.n, c.groups});
  Array packed(DType::kU8, {c.n, c.k / 2}), got(c.type, {c.rows, c.n}), want(DType::kF64, {c.rows, c.n});
  x.FillNormal(1);
  bias.FillNormal(2);
  FillCodes(&weight, info.dtype, 3);
  weight.Become(info.dtype);
  FillBetween(&zero, 4, 0, 15);
  if (e8m0) FillBetween(&scale, 5, 110, 120);  // 57344, the largest E5M2, times 2^-7: no overflow in f16
  if (e4m3) FillBetween(&scale, 5, 0, 80), scale.Become(DType::kF8E4M3);
  if (!e8m0 && !e4m3) scale.FillNormal(5, 0.01);
  outer.FillNormal(6);
  if (c.packed) {
    ASSERT_EQ(Launch(kernels::ops_mlp_linear_prepack_ref[0], {&weight, &packed}, {}), 0);
  }
  const auto run = [&](const KernelSpec& spec, Array* out) {
    ASSERT_EQ(Launch(spec,
                     {&x, &weight, &scale, c.bias ? &bias : nullptr, c.zero_point ? &zero : nullptr,
                      c.tensor_scale ? &outer : nullptr, c.packed ? &packed : nullptr, out},
                     {Scalar(c.format)}),
              0);
  };
  run(kernels::ops_mlp_linear_quantized_ref[0], &want);
  run(kernel, &got);
  const std::vector<double> expected = want.Values(), values = got.Values();
  double largest = 0;
  for (const double v : expected) largest = std::max(largest, std::fabs(v));
  const double bound = (c.type == DType::kF32 ? 1e-5 : c.type == DType::kF16 ? 1e-3 : 1e-2) * largest;
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_NEAR(values[i], expected[i], bound) << ChoiceName(kQuantNames, c.format) << " element " << i << " rows "
                                               << c.rows << " n " << c.n << " k " << c.k << " groups " << c.groups;
  }
}

// Ones times 32 weights of each group of MXFP8 E5M2, for the codes and scales of two groups.
inline std::vector<double> SumsOfTwoGroups(const KernelSpec& kernel, DType type, int64_t rows,
                                           std::array<double, 2> codes, std::array<double, 2> scales) {
  const int64_t k = 64, n = 3;
  Array x(type, {rows, k}), weight(DType::kU8, {n, k}), scale(DType::kU8, {n, 2}), got(type, {rows, n});
  x.Set(std::vector<double>(size_t(rows * k), 1));
  std::vector<double> all(size_t(n * k)), all_scales;
  for (size_t i = 0; i < all.size(); ++i) all[i] = codes[i / 32 % 2];
  for (int64_t column = 0; column < n; ++column) all_scales.insert(all_scales.end(), scales.begin(), scales.end());
  weight.Set(all);
  weight.Become(DType::kF8E5M2);
  scale.Set(all_scales);
  EXPECT_EQ(
      Launch(kernel, {&x, &weight, &scale, nullptr, nullptr, nullptr, nullptr, &got}, {Scalar(int64_t{kMXFP8E5M2})}),
      0);
  return got.Values();
}
// Infinite weights beside sums that only FP32 takes for infinite; sums beyond FP32 that cancel.
inline void ExpectExtremeScalesOfE5M2(const KernelSpec& kernel, std::initializer_list<int64_t> numbers_of_rows) {
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const int64_t rows : numbers_of_rows) {
      for (const double v : SumsOfTwoGroups(kernel, type, rows, {0x7b, 0xfb}, {254, 239})) EXPECT_EQ(v, kInfinite);
      for (const double v : SumsOfTwoGroups(kernel, type, rows, {0x7b, 0xfb}, {239, 239})) EXPECT_EQ(v, 0);
    }
  }
}

// An infinite input before weights of which one, elsewhere, may be NaN or the other infinity.
inline void ExpectWeightsBesideInfiniteInput(const KernelSpec& kernel, DType type, int64_t rows) {
  constexpr double kInfinite = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr int64_t k = 64, n = 3;
  const auto sum = [&](int64_t format, double code, double other_code, double other_scale) {
    Array x(type, {rows, k}), weight(format == kInt8 ? DType::kI8 : DType::kU8, {n, k}), scale(DType::kF32, {n, 2});
    Array got(type, {rows, n});
    std::vector<double> input(size_t(rows * k), 1), codes(size_t(n * k), code), scales(size_t(2 * n), 1);
    for (int64_t row = 0; row < rows; ++row) input[size_t(row * k + 3)] = kInfinite;
    for (int64_t row = 0; row < n; ++row)
      codes[size_t(row * k + 40)] = other_code, scales[size_t(2 * row + 1)] = other_scale;
    x.Set(input), weight.Set(codes), scale.Set(scales);
    weight.Become(kQuantInfo[size_t(format)].dtype);
    EXPECT_EQ(Launch(kernel, {&x, &weight, &scale, nullptr, nullptr, nullptr, nullptr, &got}, {Scalar(format)}), 0);
    return got.Values().back();
  };
  EXPECT_EQ(sum(kInt8, 2, 2, 1), kInfinite);
  EXPECT_TRUE(std::isnan(sum(kInt8, 2, 2, kNan)));
  EXPECT_EQ(sum(kFP8E4M3, 0x38, 0x38, 1), kInfinite);
  EXPECT_TRUE(std::isnan(sum(kFP8E4M3, 0x38, 0x7f, 1)));
  EXPECT_EQ(sum(kFP8E5M2, 0x3c, 0x7c, 1), kInfinite);
  EXPECT_TRUE(std::isnan(sum(kFP8E5M2, 0x3c, 0xfc, 1)));
}
inline void ExpectWeightsBesideInfiniteInput(const KernelSpec& kernel, std::initializer_list<int64_t> numbers_of_rows) {
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16})
    for (const int64_t rows : numbers_of_rows) ExpectWeightsBesideInfiniteInput(kernel, type, rows);
}

}  // namespace lz::testing_call
