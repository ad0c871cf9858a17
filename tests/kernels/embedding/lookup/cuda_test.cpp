// The row of cuda.embedding.lookup; its results: tests/cuda_emulation, tests/gpu.
#include "tests/kernels/cuda.h"

namespace lz {
namespace {

class CudaEmbedding : public CudaRow {};

TEST_F(CudaEmbedding, TakesTablesOfAnyDType) {
  RunsOnHopperNotOnTuring("embedding", "cuda.embedding.lookup",
                          {Tensor(DType::kI32, {2, 3}), Tensor(DType::kBF16, {9, 64})});
  RunsOnHopperNotOnTuring("embedding", "cuda.embedding.lookup",
                          {Tensor(DType::kI64, {4}), Tensor(DType::kBool, {9, 5})});
}

}  // namespace
}  // namespace lz
