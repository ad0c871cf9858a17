// The rows of kernels/attention/merge/cuda.cu; their results: tests/gpu.
#include "tests/kernels/cuda.h"

namespace lz {
namespace {

class CudaMerge : public CudaRow {};

TEST_F(CudaMerge, TakesSixteenBitsAndFloat32) {
  const lz_tensor s = Tensor(DType::kF32, {3, 4});
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    RunsOnHopperNotOnTuring("merge_attention", "cuda.attention.merge",
                            {Tensor(type, {3, 4, 33}), s, Tensor(type, {3, 4, 33}), s, Tensor(DType::kF64, {4})});
  }
  const lz_tensor wide = Tensor(DType::kF64, {3, 4, 33});
  EXPECT_EQ(Refusal("merge_attention", "cuda.attention.merge", {wide, s, wide, s}), "DTYPE_UNSUPPORTED ");
}

}  // namespace
}  // namespace lz
