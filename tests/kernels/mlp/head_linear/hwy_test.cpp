// hwy.mlp.head_linear against FP64: rows around its tile, k and n around its blocks, both orders of the weight.
#include "ops/mlp/head_linear.h"

#include <gtest/gtest.h>

#include "tests/kernels/against_reference.h"

namespace lz::kernels {
extern const KernelFamily kernels_mlp_head_linear_hwy, ops_mlp_head_linear_ref;
}  // namespace lz::kernels

namespace lz {
namespace {
using namespace testing_call;

const Pair kPair = {&kernels::kernels_mlp_head_linear_hwy[0], &kernels::ops_mlp_head_linear_ref[0],
                    ops::mlp_head_linear::kContract.tolerance};

void Check(DType type, int64_t rows, int64_t heads, int64_t n, int64_t k) {
  Array x(type, {rows, heads, k}, 3), w(type, {heads, n, k}, 1), out(type, {rows, heads, n}, 2);
  x.FillNormal(1);
  w.FillNormal(2);
  lz_scalar dtype = {.value = {.i = type == DType::kF32 ? 0 : 2}, .given = 1};
  ExpectAgrees(kPair, {&x, &w}, out, {dtype});
}

TEST(HwyHeadLinear, AgreesWithFp64AroundItsBlocks) {
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (const int64_t rows : {1, 2, 3, 4, 5, 9}) Check(type, rows, 3, 37, 41);
    for (const int64_t size : {255, 256, 257, 513}) {
      Check(type, 5, 2, size, 40);
      Check(type, 5, 2, 40, size);
    }
  }
}

}  // namespace
}  // namespace lz
