// The row of cuda.norm.rms; its results: tests/gpu.
#include "tests/kernels/cuda.h"

namespace lz {
namespace {

class CudaRmsNorm : public CudaRow {};

TEST_F(CudaRmsNorm, NeedsOneDType) {
  const lz_tensor x = Tensor(DType::kBF16, {2, 64});
  RunsOnHopperNotOnTuring("rms_norm", "cuda.norm.rms", {x, Tensor(DType::kBF16, {64})});
  EXPECT_EQ(Refusal("rms_norm", "cuda.norm.rms", {x, Tensor(DType::kF32, {64})}), "DTYPE_UNSUPPORTED ");
  EXPECT_EQ(Refusal("rms_norm", "cuda.norm.rms", {Tensor(DType::kF64, {2, 64})}), "DTYPE_UNSUPPORTED ");
}

}  // namespace
}  // namespace lz
