// The row of cuda.norm.layer; its results: tests/gpu.
#include "tests/kernels/cuda.h"

namespace lz {
namespace {

class CudaLayerNorm : public CudaRow {};

TEST_F(CudaLayerNorm, NeedsOneDType) {
  RunsOnHopperNotOnTuring("layer_norm", "cuda.norm.layer",
                          {Tensor(DType::kBF16, {2, 64}), Tensor(DType::kBF16, {64}), Tensor(DType::kBF16, {64})},
                          {Int(64)});
  EXPECT_EQ(Refusal("layer_norm", "cuda.norm.layer", {Tensor(DType::kBF16, {2, 64}), Tensor(DType::kF32, {64})}, "h100",
                    {Int(64)}),
            "DTYPE_UNSUPPORTED ");
}

}  // namespace
}  // namespace lz
