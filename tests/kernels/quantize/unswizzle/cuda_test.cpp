// The row of cuda.quantize.unswizzle; its results: tests/cuda_emulation, tests/gpu.
#include "tests/kernels/cuda.h"

namespace lz {
namespace {

class CudaUnswizzle : public CudaRow {};

TEST_F(CudaUnswizzle, TakesBytes) {
  RunsOnHopperNotOnTuring("unswizzle_scales", "cuda.quantize.unswizzle", {Tensor(DType::kF8E8M0, {2048})},
                          {Int(130), Int(5)});
}

}  // namespace
}  // namespace lz
