// The row of cuda.norm.layer.residual; its results: tests/gpu.
#include "tests/kernels/cuda.h"

namespace lz {
namespace {

class CudaLayerNormResidual : public CudaRow {};

TEST_F(CudaLayerNormResidual, NeedsOneDType) {
  RunsOnHopperNotOnTuring("fused_add_layer_norm", "cuda.norm.layer.residual",
                          {Tensor(DType::kBF16, {2, 64}), Tensor(DType::kBF16, {2, 64})}, {Int(64)});
  EXPECT_EQ(Refusal("fused_add_layer_norm", "cuda.norm.layer.residual",
                    {Tensor(DType::kBF16, {2, 64}), Tensor(DType::kBF16, {2, 64}), Tensor(DType::kF32, {64})}, "h100",
                    {Int(64)}),
            "DTYPE_UNSUPPORTED ");
}

}  // namespace
}  // namespace lz
