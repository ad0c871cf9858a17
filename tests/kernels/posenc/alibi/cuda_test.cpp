// The row of cuda.posenc.alibi; its results: tests/cuda_emulation, tests/gpu.
#include "tests/kernels/cuda.h"

namespace lz {
namespace {

class CudaAlibi : public CudaRow {};

TEST_F(CudaAlibi, TakesNarrowSlopes) {
  RunsOnHopperNotOnTuring("alibi", "cuda.posenc.alibi", {Tensor(DType::kBF16, {8})}, {Int(5), Int(9), Int(0)});
}

}  // namespace
}  // namespace lz
