// The row of kernels/convolution/causal_conv1d/cuda.cu; its results: tests/gpu.
#include "tests/kernels/cuda.h"

namespace lz {
namespace {

class CudaCausalConv1d : public CudaRow {};

TEST_F(CudaCausalConv1d, TakesAnyWindowAndState) {
  const char* id = "cuda.convolution.causal_conv1d";
  const auto call = [&](DType type, int64_t s, int64_t k, int64_t n) {
    return std::vector<lz_tensor>{Tensor(type, {2, s, 96}), Tensor(type, {96, k}), Tensor(type, {2, 96, n})};
  };
  RunsOnHopperNotOnTuring("causal_conv1d", id, call(DType::kBF16, 1, 4, 3));
  RunsOnHopperNotOnTuring("causal_conv1d", id, call(DType::kF32, 2000, 40, 50));
  EXPECT_EQ(Refusal("causal_conv1d", id, call(DType::kF64, 1, 4, 3)), "DTYPE_UNSUPPORTED ");
}

}  // namespace
}  // namespace lz
