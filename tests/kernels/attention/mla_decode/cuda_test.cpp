// The rows of kernels/attention/mla_decode/cuda.cu; their results: tests/gpu.
#include "tests/kernels/cuda.h"

namespace lz {
namespace {

class CudaMlaDecode : public CudaRow {};

TEST_F(CudaMlaDecode, TakesLatentsOf512) {
  const lz_scalar scale = {{.f = 0.1}, 1};
  const auto call = [&](DType type, int64_t d) {
    return std::vector<lz_tensor>{Tensor(type, {2, 16, d}), Tensor(type, {2, 16, 64}), Tensor(type, {40, 1, d}),
                                  Tensor(type, {40, 1, 64})};
  };
  RunsOnHopperNotOnTuring("mla_decode", "cuda.attention.mla.decode", call(DType::kBF16, 512), {scale});
  EXPECT_EQ(Refusal("mla_decode", "cuda.attention.mla.decode", call(DType::kBF16, 520), "h100", {scale}),
            "SHAPE_UNSUPPORTED ");
  EXPECT_EQ(Refusal("mla_decode", "cuda.attention.mla.decode", call(DType::kF32, 512), "h100", {scale}),
            "DTYPE_UNSUPPORTED ");
  RunsOnHopperNotOnTuring("mla_decode", "cuda.attention.mla.decode.fp32", call(DType::kF32, 512), {scale});
  const auto lacks = [&](const char* device) {  // shared memory
    return Refusal("mla_decode", "cuda.attention.mla.decode", call(DType::kBF16, 512), device, {scale})
               .find("CAPABILITY_UNSUPPORTED") != std::string::npos;
  };
  EXPECT_TRUE(lacks("l4"));
  EXPECT_FALSE(lacks("a100"));
}

}  // namespace
}  // namespace lz
