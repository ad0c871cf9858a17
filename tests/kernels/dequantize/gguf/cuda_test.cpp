// The rows of cuda.dequantize.gguf; their results: tests/cuda_emulation, tests/gpu.
#include "tests/kernels/cuda.h"

namespace lz {
namespace {

class CudaDequantizeGguf : public CudaRow {};

TEST_F(CudaDequantizeGguf, TakesEveryFormat) {
  RunsOnHopperNotOnTuring("dequantize_gguf", "cuda.dequantize.gguf", {Tensor(DType::kU8, {5, 36})}, {Int(64), Int(0)});
  RunsOnHopperNotOnTuring("dequantize_gguf", "cuda.dequantize.gguf", {Tensor(DType::kU8, {5, 420})},
                          {Int(512), Int(7), Int(1)});
}

}  // namespace
}  // namespace lz
