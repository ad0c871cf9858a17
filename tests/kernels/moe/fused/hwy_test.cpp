// hwy.moe.fused against FP64.
#include "tests/kernels/moe/fused/moe_testing.h"

namespace lz::kernels {
extern const KernelFamily kernels_moe_fused_hwy;
}  // namespace lz::kernels

namespace lz {
namespace {
using namespace testing_moe;

const Pair kPair = {&kernels::kernels_moe_fused_hwy[0], &kernels::ops_moe_fused_ref[0],
                    ops::moe_fused::kContract.tolerance};

TEST(HwyFusedMoe, AgreesWithFp64InEveryForm) { CheckAll(kPair, false); }

TEST(HwyFusedMoe, TheSameExpertTwiceCountsTwice) {
  Array x(DType::kF32, {1, 8}), ids(DType::kI64, {1, 2}), weights(DType::kF32, {1, 2}), out(DType::kF32, {1, 6});
  Array gate(DType::kF32, {2, 8, 8}), down(DType::kF32, {2, 6, 4});
  x.FillNormal(1);
  gate.FillNormal(2);
  down.FillNormal(3);
  ids.Set({1, 1});
  weights.Set({0.25, 0.5});
  ExpectAgrees(kPair, {&x, &ids, &weights, &gate, &down, nullptr, nullptr, nullptr, nullptr}, out,
               Scalars(0, false, 0));
}

}  // namespace
}  // namespace lz
