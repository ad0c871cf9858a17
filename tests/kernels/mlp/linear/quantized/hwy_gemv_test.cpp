// hwy.mlp.linear.quantized.*: like the reference on every instruction set, for each format, dtype and number of rows.
#include "ops/mlp/linear/quantized.h"

#include "tests/kernels/call.h"
#include "tests/kernels/targets.h"

namespace lz::kernels {
extern const KernelFamily kernels_mlp_linear_quantized_hwy_gemv, ops_mlp_linear_quantized_ref,
    ops_mlp_linear_prepack_ref;
}  // namespace lz::kernels

namespace lz::testing_call {
namespace {
using namespace lz::ops;

class HwyQuantizedGemv : public testing::OnEachTarget {};
INSTANTIATE_TEST_SUITE_P(Targets, HwyQuantizedGemv, testing::AllTargets(), testing::NameOfTarget);

struct Call {
  int64_t format;
  DType type = DType::kF32;
  int64_t rows = 1, n = 19, k = 96, groups = 3;
  bool bias = false, zero_point = false, tensor_scale = false;
  int64_t pad = 0;
};

void FillBytes(Array* a, uint32_t seed, int low, int high) {
  std::mt19937 generator(seed);
  std::uniform_int_distribution<int> codes(low, high);
  std::vector<double> values(size_t(a->numel()));
  for (double& v : values) v = codes(generator);
  a->Set(values);
}

void ExpectLikeReference(const Call& c) {
  const QuantInfo& info = kQuantInfo[size_t(c.format)];
  const DType scale_type = info.scales == kE8M0Scales ? DType::kU8 : DType::kF32;
  Array x(c.type, {c.rows, c.k}, c.pad), weight(info.dtype, {c.n, c.k / info.pack}, c.pad);
  Array scale(scale_type, {c.n, c.groups}, c.pad), zero(DType::kI32, {c.n, c.groups}), bias(c.type, {c.n});
  Array packed(DType::kU8, {c.n, c.k / 2}), got(c.type, {c.rows, c.n}), want(DType::kF64, {c.rows, c.n});
  x.FillNormal(1);
  bias.FillNormal(2);
  FillBytes(&weight, 3, info.dtype == DType::kI8 ? -127 : 0, info.dtype == DType::kI8 ? 127 : 255);
  FillBytes(&zero, 4, 0, 15);
  if (scale_type == DType::kU8) {
    FillBytes(&scale, 5, 120, 130);
  } else {
    scale.FillNormal(5, 0.01);
  }
  const bool four = info.pack == 2;
  if (four) {
    ASSERT_EQ(Launch(kernels::ops_mlp_linear_prepack_ref[0], {&weight, &packed}, {}), 0);
  }
  const auto run = [&](const KernelSpec& kernel, Array* out) {
    ASSERT_EQ(Launch(kernel,
                     {&x, &weight, &scale, c.bias ? &bias : nullptr, c.zero_point ? &zero : nullptr, nullptr,
                      four ? &packed : nullptr, out},
                     {Scalar(c.format)}),
              0);
  };
  run(kernels::ops_mlp_linear_quantized_ref[0], &want);
  run(kernels::kernels_mlp_linear_quantized_hwy_gemv[four ? 1 : 0], &got);
  const std::vector<double> expected = want.Values(), values = got.Values();
  double largest = 0;
  for (const double v : expected) largest = std::max(largest, std::fabs(v));
  const double bound = (c.type == DType::kF32 ? 1e-5 : c.type == DType::kF16 ? 1e-3 : 1e-2) * largest;
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_NEAR(values[i], expected[i], bound) << ChoiceName(kQuantNames, c.format) << " element " << i << " rows "
                                               << c.rows << " n " << c.n << " k " << c.k << " groups " << c.groups;
  }
}

TEST_P(HwyQuantizedGemv, EveryFormatDTypeAndNumberOfRows) {
  for (const int64_t format : {int64_t{kInt8}, int64_t{kInt4}, int64_t{kUInt4}, int64_t{kMXFP4}})
    for (const DType type : {DType::kF32, DType::kF16, DType::kBF16})
      for (int64_t rows = 1; rows <= 4; ++rows)
        ExpectLikeReference({.format = format, .type = type, .rows = rows, .bias = rows % 2 == 0});
}

TEST_P(HwyQuantizedGemv, EveryGranularity) {
  for (const int64_t groups : {1, 2, 3, 6})
    for (const int64_t format : {int64_t{kInt8}, int64_t{kInt4}})
      ExpectLikeReference({.format = format, .rows = 2, .groups = groups, .zero_point = groups != 2});
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

}  // namespace
}  // namespace lz::testing_call
