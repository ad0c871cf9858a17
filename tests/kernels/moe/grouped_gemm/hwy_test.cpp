// hwy.moe.grouped_gemm against FP64: experts of 0 to 129 rows, rows of no expert, invalid offsets.
#include "ops/moe/grouped_gemm.h"

#include <gtest/gtest.h>

#include "tests/kernels/against_reference.h"

namespace lz::kernels {
extern const KernelFamily kernels_moe_grouped_gemm_hwy, ops_moe_grouped_gemm_ref;
}  // namespace lz::kernels

namespace lz {
namespace {
using namespace testing_call;

const Pair kPair = {&kernels::kernels_moe_grouped_gemm_hwy[0], &kernels::ops_moe_grouped_gemm_ref[0],
                    ops::moe_grouped_gemm::kContract.tolerance};

void Check(DType type, const std::vector<double>& offsets, int64_t rows, int64_t n, int64_t d, bool with_bias) {
  const int64_t experts = int64_t(offsets.size()) - 1;
  Array x(type, {rows, d}, 3), w(type, {experts, n, d}, 1), bounds(DType::kI32, {experts + 1});
  Array bias(type, {experts, n}), out(type, {rows, n}, 2);
  x.FillNormal(1);
  w.FillNormal(2);
  bias.FillNormal(3);
  bounds.Set(offsets);
  ExpectAgrees(kPair, {&x, &w, &bounds, with_bias ? &bias : nullptr}, out, {});
}

TEST(HwyGroupedGemm, AgreesWithFp64ForEveryShareOfRows) {
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (const bool bias : {false, true}) {
      Check(type, {0, 1, 8, 16, 25}, 25, 33, 40, bias);    // 1, 7, 8, 9 rows
      Check(type, {0, 127, 255, 384}, 384, 20, 24, bias);  // 127, 128, 129
      Check(type, {0, 0, 60, 60}, 60, 70, 64, bias);       // all to one
      Check(type, {3, 5, 5, 9}, 12, 17, 37, bias);         // rows of no expert
      Check(type, {0, 0}, 0, 8, 8, bias);
    }
  }
}

TEST(HwyGroupedGemm, RefusesOffsetsThatLeaveTheRows) {
  Array x(DType::kF32, {6, 8}), w(DType::kF32, {2, 4, 8}), bounds(DType::kI64, {3}), out(DType::kF32, {6, 4});
  for (const std::vector<double>& offsets : {std::vector<double>{0, 3, 7}, {0, 4, 3}, {-1, 2, 6}}) {
    bounds.Set(offsets);
    for (const KernelSpec* kernel : {kPair.kernel, kPair.reference}) {
      EXPECT_EQ(Launch(*kernel, {&x, &w, &bounds, nullptr, &out}, {}), LZ_LAUNCH_INVALID_DATA);
    }
  }
}

}  // namespace
}  // namespace lz
