// The row of cuda.sampling.minp; its results: tests/cuda_emulation, tests/gpu.
#include "tests/kernels/cuda.h"

namespace lz {
namespace {

class CudaSampleMinP : public CudaRow {};

TEST_F(CudaSampleMinP, TakesLargeVocabularies) {
  RunsOnHopperNotOnTuring("sample_minp", "cuda.sampling.minp", {Tensor(DType::kBF16, {4, 262144})},
                          {Float(0.1), Float(1.0), Int(1), Int(0)});
  EXPECT_EQ(Priority("sample_minp", "cuda.sampling.minp", {Tensor(DType::kBF16, {4, 262144})}, "h100",
                     {Float(0.1), Float(1.0), Int(1), Int(0)}),
            80);
  EXPECT_EQ(Priority("sample_minp", "cuda.sampling.minp", {Tensor(DType::kBF16, {4, 262144})}, "a100",
                     {Float(0.1), Float(1.0), Int(1), Int(0)}),
            5);  // no clusters
  EXPECT_EQ(Refusal("sample_minp", "cuda.sampling.minp", {Tensor(DType::kF32, {4, (1 << 22) + 1})}, "h100",
                    {Float(0.1), Float(1.0), Int(1), Int(0)}),
            "SHAPE_UNSUPPORTED ");
  EXPECT_EQ(Refusal("sample_minp", "cuda.sampling.minp", {Tensor(DType::kF64, {4, 1024})}, "h100",
                    {Float(0.1), Float(1.0), Int(1), Int(0)}),
            "DTYPE_UNSUPPORTED ");
}

}  // namespace
}  // namespace lz
