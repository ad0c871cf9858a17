// The row of cuda.sampling.speculative; its results: tests/cuda_emulation, tests/gpu.
#include "tests/kernels/cuda.h"

namespace lz {
namespace {

class CudaSpeculative : public CudaRow {};

TEST_F(CudaSpeculative, TakesEitherIndexDType) {
  for (const DType ids : {DType::kI32, DType::kI64}) {
    RunsOnHopperNotOnTuring(
        "speculative_sample", "cuda.sampling.speculative",
        {Tensor(DType::kF16, {2, 3, 32000}), Tensor(ids, {2, 3}), Tensor(DType::kF16, {2, 4, 32000})},
        {Int(1), Int(0)});
  }
}

}  // namespace
}  // namespace lz
