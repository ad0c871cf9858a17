// The row of cuda.quantize.swizzle; its results: tests/cuda_emulation, tests/gpu.
#include "tests/kernels/cuda.h"

namespace lz {
namespace {

class CudaSwizzle : public CudaRow {};

TEST_F(CudaSwizzle, TakesBytes) {
  RunsOnHopperNotOnTuring("swizzle_scales", "cuda.quantize.swizzle", {Tensor(DType::kF8E4M3, {130, 5})});
}

}  // namespace
}  // namespace lz
