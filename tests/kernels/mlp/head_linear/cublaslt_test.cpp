// cublaslt.mlp.head_linear by a stand-in for the library: one batched product equals the reference.
#include "ops/mlp/head_linear.h"
#include "tests/kernels/against_reference.h"
#include "tests/kernels/gemm/cublaslt_testing.h"

namespace lz::kernels {
extern const KernelFamily kernels_mlp_head_linear_cublaslt, ops_mlp_head_linear_ref;
}  // namespace lz::kernels

namespace lz::testing {
namespace {
using namespace testing_call;
enum Choice : int64_t { kFloat32, kFloat16, kBFloat16 };  // of the contract's dtype

class CublasLtHeadLinear : public CublasLtTest {
 protected:
  void Check(DType type, DType to, int64_t choice, int64_t rows, int64_t heads, int64_t n, int64_t k) {
    SCOPED_TRACE(std::string(Info(type).name) + " to " + std::string(Info(to).name) + " heads " +
                 std::to_string(heads) + " n " + std::to_string(n));
    for (int columns : {0, 1}) {
      const Pair pair = {&kernels::kernels_mlp_head_linear_cublaslt[size_t(columns)],
                         &kernels::ops_mlp_head_linear_ref[0], ops::mlp_head_linear::kContract.tolerance};
      Array x(type, {rows, heads, k}), out(to, {rows, heads, n});
      Array weight = columns ? Array(type, {heads, n, k}, 2, {0, 2, 1}) : Array(type, {heads, n, k});
      x.FillNormal(1);
      weight.FillNormal(2);
      ExpectAgrees(pair, {&x, &weight}, out, {Scalar(choice)});
    }
  }
};

TEST_F(CublasLtHeadLinear, EqualsTheReference) {
  for (int64_t heads : {1, 3})
    for (int64_t n : {1, 8, 17}) {
      Check(DType::kF32, DType::kF32, kFloat32, 4, heads, n, 16);
      Check(DType::kBF16, DType::kBF16, kBFloat16, 4, heads, n, 33);
      Check(DType::kF16, DType::kF16, kFloat16, 1, heads, n, 1);
      Check(DType::kBF16, DType::kF32, kFloat32, 5, heads, n, 16);
    }
  Check(DType::kF32, DType::kF32, kFloat32, 4, 3, 5, 7);
  EXPECT_EQ(fake().batch, 3);
  Check(DType::kF32, DType::kF32, kFloat32, 0, 3, 5, 7);
  Check(DType::kF32, DType::kF32, kFloat32, 2, 0, 5, 7);
}

TEST_F(CublasLtHeadLinear, AnOutputOfAnotherHalfTypeIsRefused) {
  Array x(DType::kF32, {2, 1, 8}), weight(DType::kF32, {1, 4, 8}), out(DType::kBF16, {2, 1, 4});
  EXPECT_EQ(Launch(kernels::kernels_mlp_head_linear_cublaslt[0], {&x, &weight, &out}, {Scalar(int64_t{kBFloat16})}),
            LZ_LAUNCH_REFUSED);
}

}  // namespace
}  // namespace lz::testing
