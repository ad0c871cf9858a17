// The rows of kernels/attention/cascade/cuda.cu; their results: tests/gpu.
#include "tests/kernels/cuda.h"

namespace lz {
namespace {

class CudaCascade : public CudaRow {};

TEST_F(CudaCascade, TakesAPrefixAndPages) {
  const lz_tensor shared = Tensor(DType::kF16, {7, 2, 128}), cache = Tensor(DType::kF16, {5, 16, 2, 128});
  RunsOnHopperNotOnTuring("cascade_decode_attention", "cuda.attention.gqa.decode.cascade",
                          {Tensor(DType::kF16, {2, 8, 128}), shared, shared, cache, cache, Tensor(DType::kI32, {3}),
                           Tensor(DType::kI32, {5}), Tensor(DType::kI32, {2})});
}

}  // namespace
}  // namespace lz
