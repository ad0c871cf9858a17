// The rows of kernels/attention/ragged/cuda.cu; their results: tests/gpu.
#include "tests/kernels/cuda.h"

namespace lz {
namespace {

class CudaRagged : public CudaRow {};

TEST_F(CudaRagged, TakesSixteenBitsOrFP32) {
  const auto call = [&](DType type) {
    const lz_tensor k = Tensor(type, {9, 2, 64}), starts = Tensor(DType::kI32, {3});
    return std::vector<lz_tensor>{Tensor(type, {9, 8, 64}), k, k, starts, starts};
  };
  RunsOnHopperNotOnTuring("ragged_attention", "cuda.attention.gqa.prefill.ragged", call(DType::kBF16));
  EXPECT_EQ(Refusal("ragged_attention", "cuda.attention.gqa.prefill.ragged", call(DType::kF32)), "DTYPE_UNSUPPORTED ");
  RunsOnHopperNotOnTuring("ragged_attention", "cuda.attention.gqa.prefill.ragged.fp32", call(DType::kF32));
}

}  // namespace
}  // namespace lz
