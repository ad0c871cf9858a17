// The rows of kernels/attention/mla_prefill/cuda.cu; their results: tests/gpu.
#include "tests/kernels/cuda.h"

namespace lz {
namespace {

class CudaMlaPrefill : public CudaRow {};

TEST_F(CudaMlaPrefill, TakesHeadsOf128And64) {
  const auto call = [&](int64_t d) {
    const lz_tensor x = Tensor(DType::kBF16, {1, 9, 4, d}), pe = Tensor(DType::kBF16, {1, 9, 4, 64});
    return std::vector<lz_tensor>{x, pe, x, Tensor(DType::kBF16, {1, 9, 1, 64}), x};
  };
  RunsOnHopperNotOnTuring("mla_prefill", "cuda.attention.mla.prefill", call(128));
  EXPECT_NE(Refusal("mla_prefill", "cuda.attention.mla.prefill", call(136)), "");
  const auto lacks = [&](const char* device) {  // shared memory
    return Refusal("mla_prefill", "cuda.attention.mla.prefill", call(128), device).find("CAPABILITY_UNSUPPORTED") !=
           std::string::npos;
  };
  EXPECT_TRUE(lacks("l4"));
  EXPECT_FALSE(lacks("a100"));
}

}  // namespace
}  // namespace lz
