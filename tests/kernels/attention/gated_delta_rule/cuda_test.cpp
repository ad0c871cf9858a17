// The row of kernels/attention/gated_delta_rule/cuda.cu; its results: tests/gpu.
#include "tests/kernels/cuda.h"

namespace lz {
namespace {

class CudaGatedDeltaRule : public CudaRow {};

TEST_F(CudaGatedDeltaRule, TakesKeysOfUpTo256Elements) {
  const char* id = "cuda.attention.gated_delta_rule";
  const auto call = [&](DType type, int64_t s, int64_t d_k) {
    const lz_tensor q = Tensor(type, {2, s, 2, d_k}), gates = Tensor(DType::kF32, {2, s, 4});
    return std::vector<lz_tensor>{q,     q,     Tensor(type, {2, s, 4, 50}),
                                  gates, gates, Tensor(DType::kF32, {2, 4, d_k, 50})};
  };
  RunsOnHopperNotOnTuring("gated_delta_rule", id, call(DType::kBF16, 1, 128));
  RunsOnHopperNotOnTuring("gated_delta_rule", id, call(DType::kF32, 700, 256));
  EXPECT_EQ(Refusal("gated_delta_rule", id, call(DType::kF64, 1, 128)), "DTYPE_UNSUPPORTED ");
  EXPECT_NE(Refusal("gated_delta_rule", id, call(DType::kBF16, 1, 264)), "");
}

}  // namespace
}  // namespace lz
