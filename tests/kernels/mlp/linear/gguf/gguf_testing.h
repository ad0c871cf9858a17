// What every kernel of linear_gguf must do.
#pragma once

#include "ops/mlp/linear/gguf.h"
#include "tests/kernels/call.h"

namespace lz::kernels {
extern const KernelFamily ops_mlp_linear_gguf_ref, ops_mlp_linear_gguf_prepack_ref;
}  // namespace lz::kernels

namespace lz::testing_call {
using namespace lz::ops::mlp_linear_gguf;

// Bytes below 48 keep float16 results finite.
inline void FillBytes(Array* a, uint32_t seed) {
  std::mt19937 generator(seed);
  std::uniform_int_distribution<int> bytes(0, 47);
  std::vector<double> values(size_t(a->numel()));
  for (double& v : values) v = bytes(generator);
  a->Set(values);
}

// The kernel for `activations` on rows x n products of k values.
inline void ExpectLikeReference(const KernelSpec& kernel, int64_t format, int64_t activations, DType type, int64_t rows,
                                int64_t n, int64_t k) {
  const int64_t bytes = k / kBlockColumns[size_t(format)] * kBlockBytes[size_t(format)];
  Array x(type, {rows, k}, 3), weight(DType::kU8, {n, bytes}), bias(type, {n});
  Array packed(DType::kU8, {(n + 15) / 16, PackedBytes(format, k)});
  Array got(type, {rows, n}, 1), want(DType::kF64, {rows, n});
  x.FillNormal(1);
  bias.FillNormal(2);
  FillBytes(&weight, 3);
  ASSERT_EQ(Launch(kernels::ops_mlp_linear_gguf_prepack_ref[0], {&weight, &packed}, {Scalar(k), Scalar(format)}), 0);
  const std::vector<lz_scalar> scalars = {Scalar(format), Scalar(activations)};
  ASSERT_EQ(Launch(kernels::ops_mlp_linear_gguf_ref[0], {&x, &weight, &bias, &packed, &want}, scalars), 0);
  ASSERT_EQ(Launch(kernel, {&x, &weight, &bias, &packed, &got}, scalars), 0);
  const std::vector<double> expected = want.Values(), values = got.Values();
  double largest = 0;
  for (const double v : expected) largest = std::max(largest, std::fabs(v));
  const double bound = (type == DType::kF32 ? 3e-6 : type == DType::kF16 ? 1e-3 : 1e-2) * largest;
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_NEAR(values[i], expected[i], bound)
        << ChoiceName(kFormatNames, format) << " activations " << activations << " element " << i;
  }
}

// Inputs near both ends of FP32 (bf16: its normal numbers): sums that leave FP32 before their scale brings them back.
inline void ExpectExtremesLikeReference(const KernelSpec& kernel, DType type) {
  const int64_t k = 32, n = 16;
  for (const double input : {0x1p125, 0x1p-122}) {
    Array x(type, {1, k}), weight(DType::kU8, {n, 18}), packed(DType::kU8, {1, PackedBytes(kQ4_0, k)});
    Array got(type, {1, n}), want(type, {1, n});
    x.Set(std::vector<double>(size_t(k), input));
    std::vector<double> bytes(size_t(n * 18), 0xff);                                                     // codes of 7
    for (int64_t row = 0; row < n; ++row) bytes[size_t(row * 18)] = 1, bytes[size_t(row * 18 + 1)] = 0;  // 2^-24
    weight.Set(bytes);
    ASSERT_EQ(
        Launch(kernels::ops_mlp_linear_gguf_prepack_ref[0], {&weight, &packed}, {Scalar(k), Scalar(int64_t{kQ4_0})}),
        0);
    const std::vector<lz_scalar> scalars = {Scalar(int64_t{kQ4_0}), Scalar(int64_t{kAsGiven})};
    ASSERT_EQ(Launch(kernels::ops_mlp_linear_gguf_ref[0], {&x, &weight, nullptr, &packed, &want}, scalars), 0);
    ASSERT_EQ(Launch(kernel, {&x, &weight, nullptr, &packed, &got}, scalars), 0);
    EXPECT_EQ(got.Values(), want.Values()) << input;
  }
}

// An infinite input in the first block, a scale that is not finite in the second one.
inline void ExpectScalesBesideInfiniteInput(const KernelSpec& kernel, DType type) {
  const int64_t k = 64, n = 16;
  for (const int high : {0x3c, 0x7c, 0x7e, 0xfc}) {  // 1, inf, NaN, -inf
    Array x(type, {1, k}), weight(DType::kU8, {n, 40}), packed(DType::kU8, {1, PackedBytes(kQ4_1, k)});
    Array got(type, {1, n}), want(type, {1, n});
    std::vector<double> input(size_t(k), 1), bytes(size_t(n * 40), 0x22);
    input[5] = std::numeric_limits<double>::infinity();
    for (int64_t row = 0; row < n; ++row) {  // d and m of a block, then 16 bytes of codes
      for (const int64_t at : {0, 2, 20, 22}) bytes[size_t(row * 40 + at)] = 0, bytes[size_t(row * 40 + at + 1)] = 0x3c;
      bytes[size_t(row * 40 + 21)] = high;
    }
    x.Set(input), weight.Set(bytes);
    ASSERT_EQ(
        Launch(kernels::ops_mlp_linear_gguf_prepack_ref[0], {&weight, &packed}, {Scalar(k), Scalar(int64_t{kQ4_1})}),
        0);
    const std::vector<lz_scalar> scalars = {Scalar(int64_t{kQ4_1}), Scalar(int64_t{kAsGiven})};
    ASSERT_EQ(Launch(kernels::ops_mlp_linear_gguf_ref[0], {&x, &weight, nullptr, &packed, &want}, scalars), 0);
    ASSERT_EQ(Launch(kernel, {&x, &weight, nullptr, &packed, &got}, scalars), 0);
    const double wanted = want.Values().back(), value = got.Values().back();
    EXPECT_TRUE(std::isnan(wanted) ? std::isnan(value) : value == wanted) << high << ": " << value;
  }
}

}  // namespace lz::testing_call
