// hwy.mlp.fused against FP64: forms of the weights, row blocks, tails, the clamp, NaN.
#include "ops/mlp/fused.h"

#include <gtest/gtest.h>

#include "tests/kernels/against_reference.h"

namespace lz::kernels {
extern const KernelFamily kernels_mlp_fused_hwy, ops_mlp_fused_ref;
}  // namespace lz::kernels

namespace lz {
namespace {
using namespace testing_call;

const Pair kPair = {&kernels::kernels_mlp_fused_hwy[0], &kernels::ops_mlp_fused_ref[0],
                    ops::mlp_fused::kContract.tolerance};

std::vector<lz_scalar> Scalars(int64_t activation, bool interleaved, bool clamped) {
  return {Scalar(activation), clamped ? Scalar(1.5) : lz_scalar{},
          Scalar(clamped && activation == ops::activation::kSilu ? 1.702 : 1.0), Scalar(clamped ? 1.0 : 0.0),
          Scalar(interleaved)};
}

void Check(DType type, int64_t rows, int64_t d, int64_t n, int64_t m) {
  SCOPED_TRACE(std::string(Info(type).name) + " rows " + std::to_string(rows) + " n " + std::to_string(n));
  Array x(type, {rows, d}, 3), packed(type, {2 * n, d}, 1), gate(type, {n, d}, 5), up(type, {n, d}),
      down(type, {m, n}, 2);
  Array packed_bias(type, {2 * n}), gate_bias(type, {n}), up_bias(type, {n}), down_bias(type, {m}),
      out(type, {rows, m}, 4);
  uint32_t seed = 1;
  for (Array* a : {&x, &packed, &gate, &up, &down, &packed_bias, &gate_bias, &up_bias, &down_bias})
    a->FillNormal(seed++);
  ExpectAgrees(kPair, {&x, &packed, &down, nullptr, nullptr, nullptr, nullptr}, out, Scalars(0, false, false));
  ExpectAgrees(kPair, {&x, &packed, &down, nullptr, &packed_bias, nullptr, &down_bias}, out, Scalars(0, true, true));
  ExpectAgrees(kPair, {&x, &gate, &down, &up, &gate_bias, &up_bias, &down_bias}, out, Scalars(2, false, true));
  ExpectAgrees(kPair, {&x, &gate, &down, nullptr, &gate_bias, nullptr, nullptr}, out, Scalars(4, false, false));
}

TEST(HwyFusedMlp, AgreesWithFp64InEveryForm) {
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    Check(type, 1, 64, 33, 40);
    Check(type, 5, 37, 64, 31);
    Check(type, 49, 40, 35, 65);   // more than one block of rows
    Check(type, 481, 16, 24, 17);  // more than one chunk
    Check(type, 2, 300, 70, 33);
  }
}

TEST(HwyFusedMlp, NaNReachesItsRowAlone) {
  Array x(DType::kF32, {3, 32}), gate(DType::kF32, {32, 32}), down(DType::kF32, {20, 16}), out(DType::kF32, {3, 20});
  x.FillNormal(1);
  gate.FillNormal(2);
  down.FillNormal(3);
  x.SetOne(40, NAN);
  ExpectAgrees(kPair, {&x, &gate, &down, nullptr, nullptr, nullptr, nullptr}, out, Scalars(0, false, true));
}

}  // namespace
}  // namespace lz
