// The rows of kernels/attention/cross/cuda.cu; their results: tests/gpu.
#include "tests/kernels/cuda.h"

namespace lz {
namespace {

class CudaCrossAttention : public CudaRow {};

TEST_F(CudaCrossAttention, TakesFewQueries) {
  const lz_tensor k = Tensor(DType::kF32, {2, 40, 2, 64});
  RunsOnHopperNotOnTuring("cross_attention", "cuda.attention.cross.decode", {Tensor(DType::kF32, {2, 1, 8, 64}), k, k});
  RunsOnHopperNotOnTuring("cross_attention", "cuda.attention.cross.few", {Tensor(DType::kF32, {2, 8, 8, 64}), k, k});
}

TEST_F(CudaCrossAttention, TakesMasksInSixteenBits) {
  const char* id = "cuda.attention.cross.prefill.mask";
  const lz_tensor q = Tensor(DType::kBF16, {2, 20, 8, 64}), k = Tensor(DType::kBF16, {2, 40, 2, 64});
  const lz_tensor mask = Tensor(DType::kBool, {2, 1, 20, 40});
  RunsOnHopperNotOnTuring("cross_attention", id, {q, k, k, mask});
  EXPECT_NE(Refusal("cross_attention", id, {q, k, k}), "");
}

}  // namespace
}  // namespace lz
