// The row of cuda.posenc.rope; its results: tests/gpu.
#include "tests/kernels/cuda.h"

namespace lz {
namespace {

class CudaRope : public CudaRow {};

TEST_F(CudaRope, TakesTablesOfAnotherDType) {
  const lz_tensor x = Tensor(DType::kBF16, {1, 3, 2, 64});
  const lz_tensor table = Tensor(DType::kF32, {3, 64}), wide = Tensor(DType::kF64, {3, 64});
  RunsOnHopperNotOnTuring("rope", "cuda.posenc.rope", {x, table, table});
  EXPECT_EQ(Refusal("rope", "cuda.posenc.rope", {x, wide, wide}), "DTYPE_UNSUPPORTED ");
}

}  // namespace
}  // namespace lz
