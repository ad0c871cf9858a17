// hwy.mlp.linear.quantized.gemv_*: like the reference on every instruction set, for each format, dtype and number of
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
  c.packed = kQuantInfo[size_t(c.format)].pack == 2;
  ExpectLikeQuantizedReference(kernels::kernels_mlp_linear_quantized_hwy_gemv[c.packed ? 1 : 0], c);
}

TEST_P(HwyQuantizedGemv, EveryFormatDTypeAndNumberOfRows) {
  for (const int64_t format : {int64_t{kInt8}, int64_t{kInt4}, int64_t{kUInt4}, int64_t{kMXFP4}})
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
