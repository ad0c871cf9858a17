// The row of cuda.activation.swiglu; its results: tests/gpu.
#include "tests/kernels/cuda.h"

namespace lz {
namespace {

class CudaSwiGlu : public CudaRow {};

TEST_F(CudaSwiGlu, Row) {
  const lz_tensor x = Tensor(DType::kF32, {2, 64}), wide = Tensor(DType::kF64, {2, 64});
  RunsOnHopperNotOnTuring("swiglu", "cuda.activation.swiglu", {x, x});
  EXPECT_EQ(Refusal("swiglu", "cuda.activation.swiglu", {wide, wide}), "DTYPE_UNSUPPORTED ");
}

}  // namespace
}  // namespace lz
