// The row of cuda.reduce.tree; its results: tests/gpu.
#include "tests/kernels/cuda.h"

namespace lz {
namespace {

class CudaReduceTree : public CudaRow {};

TEST_F(CudaReduceTree, AddsInFloat32) {
  RunsOnHopperNotOnTuring("reduce_tree", "cuda.reduce.tree", {Tensor(DType::kBF16, {3, 2, 64})});
  EXPECT_EQ(Refusal("reduce_tree", "cuda.reduce.tree", {Tensor(DType::kF64, {3, 2, 64})}, "h100"),
            "DTYPE_UNSUPPORTED ");
}

}  // namespace
}  // namespace lz
