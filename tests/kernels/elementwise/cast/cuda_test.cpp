// The row of cuda.elementwise.cast; its results: tests/cuda_emulation, tests/gpu.
#include "tests/kernels/cuda.h"

namespace lz {
namespace {

class CudaCast : public CudaRow {};

TEST_F(CudaCast, TakesNarrowInput) {
  RunsOnHopperNotOnTuring("cast", "cuda.elementwise.cast", {Tensor(DType::kBF16, {8, 64})}, {Int(1)});
}

}  // namespace
}  // namespace lz
