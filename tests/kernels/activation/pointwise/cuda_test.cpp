// The row of cuda.activation.pointwise; its results: tests/gpu.
#include "tests/kernels/cuda.h"

namespace lz {
namespace {

class CudaPointwise : public CudaRow {};

TEST_F(CudaPointwise, TakesFloatsOf32Bits) {
  RunsOnHopperNotOnTuring("activation", "cuda.activation.pointwise", {Tensor(DType::kBF16, {2, 64})}, {Int(1)});
  EXPECT_EQ(Refusal("activation", "cuda.activation.pointwise", {Tensor(DType::kF64, {2, 64})}, "h100", {Int(1)}),
            "DTYPE_UNSUPPORTED ");
}

}  // namespace
}  // namespace lz
