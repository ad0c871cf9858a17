// The rows of cuda.mlp.linear.gguf; their results: tests/cuda_emulation, tests/gpu.
#include "tests/kernels/cuda.h"

namespace lz {
namespace {

class CudaLinearGguf : public CudaRow {};

TEST_F(CudaLinearGguf, TakesRowsThatBeginAtMultiplesOf16Bytes) {
  const auto refusal = [&](int64_t format, int64_t k, int64_t bytes, int64_t rounded) {
    return Refusal("linear_gguf", "cuda.mlp.linear.gguf",
                   {Tensor(DType::kBF16, {4, k}), Tensor(DType::kU8, {24, bytes})}, "h100",
                   {Int(format), Int(rounded)});
  };
  EXPECT_EQ(refusal(0, 256, 144, 0), "");
  EXPECT_EQ(refusal(0, 64, 36, 0), "ALIGNMENT ");
  EXPECT_EQ(refusal(7, 2048, 1680, 0), "");
  EXPECT_EQ(refusal(7, 256, 210, 0), "ALIGNMENT ");
  EXPECT_NE(refusal(0, 256, 144, 1), "");  // the input rounded to 8 bits
  RunsOnHopperNotOnTuring("linear_gguf", "cuda.mlp.linear.gguf",
                          {Tensor(DType::kF16, {1, 256}), Tensor(DType::kU8, {8, 144})}, {Int(5), Int(0)});
}

}  // namespace
}  // namespace lz
