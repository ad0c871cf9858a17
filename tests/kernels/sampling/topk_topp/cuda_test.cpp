// The row of cuda.sampling.topk_topp; its results: tests/cuda_emulation, tests/gpu.
#include "tests/kernels/cuda.h"

namespace lz {
namespace {

class CudaSampleTopKTopP : public CudaRow {};

TEST_F(CudaSampleTopKTopP, TakesLargeVocabularies) {
  RunsOnHopperNotOnTuring("sample_topk_topp", "cuda.sampling.topk_topp", {Tensor(DType::kBF16, {4, 262144})},
                          {Int(50), Float(0.9), Float(1.0), Int(1), Int(0)});
  EXPECT_EQ(Priority("sample_topk_topp", "cuda.sampling.topk_topp", {Tensor(DType::kBF16, {4, 262144})}, "h100",
                     {Int(50), Float(0.9), Float(1.0), Int(1), Int(0)}),
            80);
  EXPECT_EQ(Priority("sample_topk_topp", "cuda.sampling.topk_topp", {Tensor(DType::kBF16, {4, 262144})}, "a100",
                     {Int(50), Float(0.9), Float(1.0), Int(1), Int(0)}),
            5);  // no clusters
  EXPECT_EQ(Refusal("sample_topk_topp", "cuda.sampling.topk_topp", {Tensor(DType::kF32, {4, (1 << 22) + 1})}, "h100",
                    {Int(50), Float(0.9), Float(1.0), Int(1), Int(0)}),
            "SHAPE_UNSUPPORTED ");
  EXPECT_EQ(Refusal("sample_topk_topp", "cuda.sampling.topk_topp", {Tensor(DType::kF64, {4, 1024})}, "h100",
                    {Int(50), Float(0.9), Float(1.0), Int(1), Int(0)}),
            "DTYPE_UNSUPPORTED ");
}

}  // namespace
}  // namespace lz
