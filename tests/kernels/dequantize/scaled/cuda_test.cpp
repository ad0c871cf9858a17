// The row of cuda.dequantize; its results: tests/gpu.
#include "tests/kernels/cuda.h"

namespace lz {
namespace {

class CudaDequantize : public CudaRow {};

TEST_F(CudaDequantize, TakesEveryFormat) {
  RunsOnHopperNotOnTuring("dequantize", "cuda.dequantize", {Tensor(DType::kI8, {2, 64}), Tensor(DType::kF32, {2, 1})},
                          {Int(0)});
  RunsOnHopperNotOnTuring("dequantize", "cuda.dequantize", {Tensor(DType::kU8, {2, 64}), Tensor(DType::kU8, {2, 4})},
                          {Int(8)});
}

}  // namespace
}  // namespace lz
