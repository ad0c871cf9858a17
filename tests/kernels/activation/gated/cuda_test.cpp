// The row of cuda.activation.gated; its results: tests/gpu.
#include "tests/kernels/cuda.h"

namespace lz {
namespace {

class CudaGated : public CudaRow {};

TEST_F(CudaGated, TakesFloatsOf32Bits) {
  RunsOnHopperNotOnTuring("gated_activation", "cuda.activation.gated", {Tensor(DType::kBF16, {2, 64})});
  EXPECT_EQ(Refusal("gated_activation", "cuda.activation.gated", {Tensor(DType::kF64, {2, 64})}, "h100"),
            "DTYPE_UNSUPPORTED ");
}

}  // namespace
}  // namespace lz
