// The row of cuda.norm.rms.residual; its results: tests/gpu.
#include "tests/kernels/cuda.h"

namespace lz {
namespace {

class CudaRmsNormResidual : public CudaRow {};

TEST_F(CudaRmsNormResidual, NeedsOneDType) {
  const lz_tensor x = Tensor(DType::kF16, {2, 64});
  const char* name = "fused_add_rms_norm";
  RunsOnHopperNotOnTuring(name, "cuda.norm.rms.residual", {x, x, Tensor(DType::kF16, {64})});
  EXPECT_EQ(Refusal(name, "cuda.norm.rms.residual", {x, x, Tensor(DType::kF32, {64})}), "DTYPE_UNSUPPORTED ");
}

}  // namespace
}  // namespace lz
