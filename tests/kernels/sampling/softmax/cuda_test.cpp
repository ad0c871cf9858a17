// The row of cuda.sampling.softmax; its results: tests/cuda_emulation, tests/gpu.
#include "tests/kernels/cuda.h"

namespace lz {
namespace {

class CudaSoftmax : public CudaRow {};

TEST_F(CudaSoftmax, TakesNarrowLogits) {
  RunsOnHopperNotOnTuring("softmax", "cuda.sampling.softmax", {Tensor(DType::kBF16, {4, 32000})}, {Float(0.7)});
}

}  // namespace
}  // namespace lz
