// The row of cuda.quantize.*; its results: tests/gpu.
#include "tests/kernels/cuda.h"

namespace lz {
namespace {

class CudaQuantize : public CudaRow {};

TEST_F(CudaQuantize, TakesScalesOrRuns) {
  const lz_tensor x = Tensor(DType::kBF16, {4, 64}), scale = Tensor(DType::kF32, {4, 1});
  RunsOnHopperNotOnTuring("quantize", "cuda.quantize.given", {x, scale}, {Int(0)});
  RunsOnHopperNotOnTuring("quantize", "cuda.quantize.rows", {x}, {Int(0), Int(0)});
  RunsOnHopperNotOnTuring("quantize", "cuda.quantize.groups", {x}, {Int(0), Left(), Int(16)});
  RunsOnHopperNotOnTuring("quantize", "cuda.quantize.groups.int4", {x}, {Int(2), Left(), Int(16)});
  RunsOnHopperNotOnTuring("quantize", "cuda.quantize.powers", {x}, {Int(8)});
  EXPECT_NE(Refusal("quantize", "cuda.quantize.given", {x}, "h100", {Int(0)}), "");
  EXPECT_NE(Refusal("quantize", "cuda.quantize.rows", {x}, "h100", {Int(0), Int(1)}), "");
  EXPECT_NE(Refusal("quantize", "cuda.quantize.groups", {x}, "h100", {Int(2), Left(), Int(16)}), "");
  EXPECT_NE(Refusal("quantize", "cuda.quantize.groups.int4", {x}, "h100", {Int(2), Left(), Int(1)}), "");
}

}  // namespace
}  // namespace lz
