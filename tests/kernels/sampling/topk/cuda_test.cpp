// The row of cuda.sampling.topk; its results: tests/cuda_emulation, tests/gpu.
#include "tests/kernels/cuda.h"

namespace lz {
namespace {

class CudaSampleTopK : public CudaRow {};

TEST_F(CudaSampleTopK, TakesLargeVocabularies) {
  RunsOnHopperNotOnTuring("sample_topk", "cuda.sampling.topk", {Tensor(DType::kBF16, {4, 262144})},
                          {Int(50), Float(1.0), Int(1), Int(0)});
  EXPECT_EQ(Priority("sample_topk", "cuda.sampling.topk", {Tensor(DType::kBF16, {4, 262144})}, "h100",
                     {Int(50), Float(1.0), Int(1), Int(0)}),
            80);
  EXPECT_EQ(Priority("sample_topk", "cuda.sampling.topk", {Tensor(DType::kBF16, {4, 262144})}, "a100",
                     {Int(50), Float(1.0), Int(1), Int(0)}),
            5);  // no clusters
  EXPECT_EQ(Refusal("sample_topk", "cuda.sampling.topk", {Tensor(DType::kF32, {4, (1 << 22) + 1})}, "h100",
                    {Int(50), Float(1.0), Int(1), Int(0)}),
            "SHAPE_UNSUPPORTED ");
  EXPECT_EQ(Refusal("sample_topk", "cuda.sampling.topk", {Tensor(DType::kF64, {4, 1024})}, "h100",
                    {Int(50), Float(1.0), Int(1), Int(0)}),
            "DTYPE_UNSUPPORTED ");
}

}  // namespace
}  // namespace lz
