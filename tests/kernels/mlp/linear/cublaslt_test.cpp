// cublaslt.mlp.linear by a stand-in for the library: shapes, leading dimensions, dtypes, biases and addresses are those
// of the call.
#include "tests/kernels/gemm/cublaslt_testing.h"
#include "tests/kernels/kernel_of.h"
#include "tests/kernels/mlp/linear/linear_testing.h"

namespace lz::kernels {
extern const KernelFamily kernels_mlp_linear_cublaslt;
}  // namespace lz::kernels

namespace lz::testing {
namespace {

const KernelSpec& Kernel(std::string_view id) { return KernelOf(kernels::kernels_mlp_linear_cublaslt, id); }

class CublasLtLinear : public CublasLtTest {
 protected:
  void ExpectAll(const KernelSpec& kernel, bool column_major) {
    for (DType type : {DType::kF32, DType::kF16, DType::kBF16})
      for (int64_t rows : {1, 2, 7})
        for (int64_t n : {1, 8, 33})
          for (int64_t k : {1, 16, 31})
            ExpectLikeReference(
                kernel, {.type = type, .rows = rows, .n = n, .k = k, .bias = n != 8, .column_major = column_major});
    ExpectLikeReference(kernel, {.rows = 0, .n = 9, .k = 16, .column_major = column_major});
    ExpectLikeReference(kernel, {.rows = 9, .n = 0, .k = 16, .bias = true, .column_major = column_major});
  }
};

TEST_F(CublasLtLinear, EqualsTheReference) { ExpectAll(Kernel("cublaslt.mlp.linear"), false); }
TEST_F(CublasLtLinear, WeightsByColumnsEqualTheReference) { ExpectAll(Kernel("cublaslt.mlp.linear.columns"), true); }

TEST_F(CublasLtLinear, TheChoicesRunAnAlgorithmEach) {
  int wanted = 0;
  for (const char* id : {"cublaslt.mlp.linear", "cublaslt.mlp.linear.second", "cublaslt.mlp.linear.third"}) {
    ExpectLikeReference(Kernel(id), {.type = DType::kBF16, .rows = 8, .n = 64, .k = 32});
    EXPECT_EQ(fake().algorithm, wanted++) << id;
  }
  fake().algorithms = 1;
  ExpectLikeReference(Kernel("cublaslt.mlp.linear.third"), {.type = DType::kBF16, .rows = 8, .n = 72, .k = 32});
  EXPECT_EQ(fake().algorithm, 0);
}

TEST_F(CublasLtLinear, TheBiasIsOfTheEpilogue) {
  ExpectLikeReference(Kernel("cublaslt.mlp.linear"), {.rows = 2, .n = 4, .k = 4, .bias = true});
  EXPECT_EQ(fake().epilogue, 4);
  ExpectLikeReference(Kernel("cublaslt.mlp.linear"), {.rows = 2, .n = 4, .k = 4});
  EXPECT_EQ(fake().epilogue, 1);
}

TEST_F(CublasLtLinear, WeightsByColumnsWithUnusedElementsBetween) {
  LinearCall call = {.rows = 3, .n = 5, .k = 7, .column_major = true};
  LinearData data(call);
  Matrix padded(call.type, call.n, call.k, 3, true);
  padded.Fill(data.random);
  const KernelSpec& kernel = Kernel("cublaslt.mlp.linear.columns");
  ASSERT_EQ(data.Run(kernel, call, data.output, data.input.tensor(), padded.tensor()), 0);
  ASSERT_EQ(data.Run(kernels::ops_mlp_linear_ref[0], call, data.wanted, data.input.tensor(), padded.tensor()), 0);
  EXPECT_LE(RowMaxError(data.output.view(), data.wanted.view()), 1e-5);
}

// Views that no matrix of the library describes are refused, not computed wrong.
TEST_F(CublasLtLinear, OutputsWithGapsAndWeightsThatOverlapAreRefused) {
  LinearCall call = {.rows = 3, .n = 5, .k = 7, .column_major = true};
  LinearData data(call);
  const KernelSpec& kernel = Kernel("cublaslt.mlp.linear.columns");
  EXPECT_EQ(data.Run(kernel, call, Matrix(call.type, call.rows, call.n, 2)), LZ_LAUNCH_REFUSED);
  lz_tensor weight = data.weight.tensor();
  int64_t strides[] = {1, 2};
  weight.strides = strides;
  EXPECT_EQ(data.Run(kernel, call, data.output, data.input.tensor(), weight), LZ_LAUNCH_REFUSED);
}

}  // namespace
}  // namespace lz::testing
