// The row of cuda.quantize.nvfp4; its results: tests/cuda_emulation, tests/gpu.
#include "tests/kernels/cuda.h"

namespace lz {
namespace {

class CudaNvfp4 : public CudaRow {};

TEST_F(CudaNvfp4, TakesRowsAndTensors) {
  for (const int64_t per_row : {0, 1}) {
    RunsOnHopperNotOnTuring("quantize_nvfp4", "cuda.quantize.nvfp4", {Tensor(DType::kBF16, {8, 64})}, {Int(per_row)});
  }
}

}  // namespace
}  // namespace lz
