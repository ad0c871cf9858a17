// The rows of kernels/attention/cross/cuda.cu; their results: tests/gpu.
#include "tests/kernels/cuda.h"

namespace lz {
namespace {

class CudaCrossAttention : public CudaRow {};

TEST_F(CudaCrossAttention, TakesFewQueries) {
  const lz_tensor k = Tensor(DType::kF32, {2, 40, 2, 64});
  RunsOnHopperNotOnTuring("cross_attention", "cuda.attention.cross.decode", {Tensor(DType::kF32, {2, 1, 8, 64}), k, k});
  RunsOnHopperNotOnTuring("cross_attention", "cuda.attention.cross.few", {Tensor(DType::kF32, {2, 8, 8, 64}), k, k});
}

}  // namespace
}  // namespace lz
