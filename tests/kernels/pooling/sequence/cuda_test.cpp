// The row of cuda.pooling.sequence; its results: tests/cuda_emulation, tests/gpu.
#include "tests/kernels/cuda.h"

namespace lz {
namespace {

class CudaSequencePool : public CudaRow {};

TEST_F(CudaSequencePool, TakesMasks) {
  RunsOnHopperNotOnTuring("sequence_pool", "cuda.pooling.sequence",
                          {Tensor(DType::kF16, {3, 7, 65}), Tensor(DType::kBool, {3, 7})}, {Int(0)});
}

}  // namespace
}  // namespace lz
