// The rows of cuda.mlp.linear; their results: tests/cuda_emulation, tests/gpu.
#include "tests/kernels/cuda.h"

namespace lz {
namespace {

class CudaLinear : public CudaRow {};

TEST_F(CudaLinear, TakesFewRowsOfHalves) {
  const auto refusal = [&](DType type, int64_t rows, int64_t k) {
    return Refusal("linear", "cuda.mlp.linear", {Tensor(type, {rows, k}), Tensor(type, {24, k})});
  };
  EXPECT_EQ(refusal(DType::kF16, 16, 4096), "");
  EXPECT_EQ(refusal(DType::kF32, 1, 4096), "DTYPE_UNSUPPORTED ");
  EXPECT_NE(refusal(DType::kBF16, 17, 4096), "");
  EXPECT_NE(refusal(DType::kBF16, 1, 4100), "");
  RunsOnHopperNotOnTuring("linear", "cuda.mlp.linear", {Tensor(DType::kBF16, {1, 64}), Tensor(DType::kBF16, {8, 64})});
}

}  // namespace
}  // namespace lz
