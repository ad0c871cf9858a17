// The rows of cuda.mlp.linear.quantized; their results: tests/cuda_emulation, tests/gpu.
#include "tests/kernels/cuda.h"

namespace lz {
namespace {

class CudaLinearQuantized : public CudaRow {};

TEST_F(CudaLinearQuantized, TakesGroupsOf32AndNVFP4) {
  const auto refusal = [&](const char* kernel, int64_t format, DType scale, int64_t group) {
    return Refusal("linear_quantized", kernel,
                   {Tensor(DType::kBF16, {4, 512}), Tensor(DType::kU8, {24, 256}), Tensor(scale, {24, 512 / group}),
                    Tensor(DType::kBF16, {24})},
                   "h100", {Int(format)});
  };
  constexpr const char *kPlain = "cuda.mlp.linear.quantized", *kNVFP4 = "cuda.mlp.linear.quantized.nvfp4";
  EXPECT_EQ(refusal(kPlain, 2, DType::kF32, 32), "");
  EXPECT_EQ(refusal(kPlain, 2, DType::kF16, 512), "");
  EXPECT_EQ(refusal(kPlain, 2, DType::kF32, 16), "QUANT_GRANULARITY ");
  EXPECT_EQ(refusal(kPlain, 8, DType::kU8, 32), "");
  EXPECT_NE(refusal(kNVFP4, 8, DType::kU8, 32), "");
  RunsOnHopperNotOnTuring("linear_quantized", kPlain,
                          {Tensor(DType::kF16, {16, 64}), Tensor(DType::kI8, {8, 64}), Tensor(DType::kF32, {8, 1})},
                          {Int(0)});
}

}  // namespace
}  // namespace lz
