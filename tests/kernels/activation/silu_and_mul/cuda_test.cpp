// The row of cuda.activation.silu_and_mul; its results: tests/gpu.
#include "tests/kernels/cuda.h"

namespace lz {
namespace {

class CudaSiluAndMul : public CudaRow {};

TEST_F(CudaSiluAndMul, Row) {
  const lz_tensor x = Tensor(DType::kBF16, {2, 64}), wide = Tensor(DType::kF64, {2, 64});
  RunsOnHopperNotOnTuring("silu_and_mul", "cuda.activation.silu_and_mul", {x});
  EXPECT_EQ(Refusal("silu_and_mul", "cuda.activation.silu_and_mul", {wide}), "DTYPE_UNSUPPORTED ");
}

}  // namespace
}  // namespace lz
