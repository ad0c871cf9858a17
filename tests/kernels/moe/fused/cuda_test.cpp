// The rows of kernels/moe/fused/cuda.cu; their results: tests/gpu/test_expert_kernels.py and tests/cuda_emulation.
#include "tests/kernels/cuda.h"

namespace lz {
namespace {

class CudaExperts : public CudaRow {
 protected:
  std::vector<lz_tensor> Call(DType type, int64_t d) {
    const lz_tensor ids = Tensor(DType::kI32, {5, 2}), weights = Tensor(DType::kF32, {5, 2});
    return {Tensor(type, {5, d}), ids, weights, Tensor(type, {4, 32, d}), Tensor(type, {4, 24, 16})};
  }
};

TEST_F(CudaExperts, MultiplyMatricesInSixteenBits) {
  RunsOnHopperNotOnTuring("fused_moe", "cuda.moe.fused", Call(DType::kF16, 64));
  RunsOnHopperNotOnTuring("fused_moe", "cuda.moe.fused", Call(DType::kBF16, 64));
  EXPECT_EQ(Refusal("fused_moe", "cuda.moe.fused", Call(DType::kF32, 64)), "DTYPE_UNSUPPORTED ");
  EXPECT_NE(Refusal("fused_moe", "cuda.moe.fused", Call(DType::kF16, 65)), "");
}

TEST_F(CudaExperts, HaveFP32ForTheRest) {
  RunsOnHopperNotOnTuring("fused_moe", "cuda.moe.fused.fp32", Call(DType::kF32, 65));
  RunsOnHopperNotOnTuring("fused_moe", "cuda.moe.fused.fp32", Call(DType::kF16, 65));
}

}  // namespace
}  // namespace lz
