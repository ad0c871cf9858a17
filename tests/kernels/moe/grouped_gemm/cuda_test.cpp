// The rows of kernels/moe/grouped_gemm/cuda.cu; their results: tests/gpu/test_expert_kernels.py and
// tests/cuda_emulation.
#include "tests/kernels/cuda.h"

namespace lz {
namespace {

class CudaGroupedGemm : public CudaRow {
 protected:
  std::vector<lz_tensor> Call(DType type, int64_t d) {
    return {Tensor(type, {9, d}), Tensor(type, {4, 24, d}), Tensor(DType::kI32, {5})};
  }
};

TEST_F(CudaGroupedGemm, MultipliesMatricesInSixteenBits) {
  RunsOnHopperNotOnTuring("grouped_gemm", "cuda.moe.grouped_gemm", Call(DType::kF16, 64));
  EXPECT_EQ(Refusal("grouped_gemm", "cuda.moe.grouped_gemm", Call(DType::kF32, 64)), "DTYPE_UNSUPPORTED ");
  EXPECT_NE(Refusal("grouped_gemm", "cuda.moe.grouped_gemm", Call(DType::kF16, 65)), "");
}

TEST_F(CudaGroupedGemm, HasFP32ForTheRest) {
  RunsOnHopperNotOnTuring("grouped_gemm", "cuda.moe.grouped_gemm.fp32", Call(DType::kF32, 65));
}

}  // namespace
}  // namespace lz
