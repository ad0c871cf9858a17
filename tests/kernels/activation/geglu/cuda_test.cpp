// The row of cuda.activation.geglu; its results: tests/gpu.
#include "tests/kernels/cuda.h"

namespace lz {
namespace {

class CudaGeGlu : public CudaRow {};

TEST_F(CudaGeGlu, Row) {
  const lz_tensor x = Tensor(DType::kF32, {2, 64}), wide = Tensor(DType::kF64, {2, 64});
  RunsOnHopperNotOnTuring("geglu", "cuda.activation.geglu", {x, x});
  EXPECT_EQ(Refusal("geglu", "cuda.activation.geglu", {wide, wide}), "DTYPE_UNSUPPORTED ");
}

}  // namespace
}  // namespace lz
