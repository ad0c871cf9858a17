// cublaslt.mlp.fused by a stand-in for the library: two products, the activation in the first one's epilogue.
#include "ops/mlp/fused.h"
#include "tests/kernels/against_reference.h"
#include "tests/kernels/gemm/cublaslt_testing.h"

namespace lz::kernels {
extern const KernelFamily kernels_mlp_fused_cublaslt, ops_mlp_fused_ref;
}  // namespace lz::kernels

namespace lz::testing {
namespace {
using namespace testing_call;

std::vector<lz_scalar> Scalars(int64_t activation) {
  return {Scalar(activation), lz_scalar{}, Scalar(1.0), Scalar(0.0), Scalar(false)};
}

class CublasLtFused : public CublasLtTest {
 protected:
  void Check(int64_t activation, int64_t rows, int64_t d, int64_t n, int64_t m) {
    SCOPED_TRACE("activation " + std::to_string(activation) + " rows " + std::to_string(rows) + " n " +
                 std::to_string(n));
    const Pair pair = {&kernels::kernels_mlp_fused_cublaslt[0], &kernels::ops_mlp_fused_ref[0],
                       ops::mlp_fused::kContract.tolerance};
    constexpr DType kType = DType::kBF16;
    Array x(kType, {rows, d}), gate(kType, {n, d}), down(kType, {m, n}), gate_bias(kType, {n}), down_bias(kType, {m}),
        out(kType, {rows, m});
    uint32_t seed = 1;
    for (Array* a : {&x, &gate, &down, &gate_bias, &down_bias}) a->FillNormal(seed++);
    ExpectAgrees(pair, {&x, &gate, &down, nullptr, nullptr, nullptr, nullptr}, out, Scalars(activation));
    ExpectAgrees(pair, {&x, &gate, &down, nullptr, &gate_bias, nullptr, nullptr}, out, Scalars(activation));
    ExpectAgrees(pair, {&x, &gate, &down, nullptr, &gate_bias, nullptr, &down_bias}, out, Scalars(activation));
  }
};

TEST_F(CublasLtFused, EqualsTheReference) {
  using namespace ops::activation;
  for (int64_t activation : {kRelu, kGeluTanh}) {
    Check(activation, 1, 16, 64, 24);
    Check(activation, 5, 33, 47, 31);
    Check(activation, 0, 16, 32, 8);
    Check(activation, 3, 16, 32, 0);
  }
}

TEST_F(CublasLtFused, RefusesBeforeTheFirstProductWhatTheSecondCannot) {
  constexpr DType kType = DType::kBF16;
  const auto run = [](int64_t m) {
    Array x(kType, {2, 16}), gate(kType, {32, 16}), down(kType, {m, 32}), out(kType, {2, m});
    for (Array* a : {&x, &gate, &down}) a->FillNormal(1);
    return Launch(kernels::kernels_mlp_fused_cublaslt[0], {&x, &gate, &down, nullptr, nullptr, nullptr, nullptr, &out},
                  Scalars(ops::activation::kRelu));
  };
  ASSERT_EQ(run(8), LZ_LAUNCH_DONE);  // the first product has an algorithm from now on
  fake().algorithms = 0;
  const int before = fake().products;
  EXPECT_EQ(run(40), LZ_LAUNCH_REFUSED);
  EXPECT_EQ(fake().products, before);
}

}  // namespace
}  // namespace lz::testing
