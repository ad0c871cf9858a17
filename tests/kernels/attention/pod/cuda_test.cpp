// The rows of kernels/attention/pod/cuda.cu; their results: tests/gpu.
#include "tests/kernels/cuda.h"

namespace lz {
namespace {

class CudaPod : public CudaRow {};

TEST_F(CudaPod, TakesANarrowCache) {
  const lz_tensor k = Tensor(DType::kBF16, {9, 2, 64}), starts = Tensor(DType::kI32, {3});
  for (const DType type : {DType::kBF16, DType::kF8E4M3}) {
    const lz_tensor cache = Tensor(type, {5, 16, 2, 64});
    RunsOnHopperNotOnTuring("pod_attention", "cuda.attention.gqa.decode.pod",
                            {Tensor(DType::kBF16, {9, 8, 64}), k, k, starts, starts, Tensor(DType::kBF16, {2, 8, 64}),
                             cache, cache, starts, Tensor(DType::kI32, {5}), Tensor(DType::kI32, {2})});
  }
}

}  // namespace
}  // namespace lz
