// The rows of kernels/attention/partials/cuda.cu; their results: tests/gpu.
#include "tests/kernels/cuda.h"

namespace lz {
namespace {

class CudaPartials : public CudaRow {};

TEST_F(CudaPartials, TakesFewQueries) {
  const lz_tensor k = Tensor(DType::kF32, {2, 40, 2, 64});
  const char* id = "cuda.attention.gqa.partials";
  RunsOnHopperNotOnTuring("attention_partials", id, {Tensor(DType::kF32, {2, 8, 8, 64}), k, k}, {Int(3)});
  EXPECT_EQ(Refusal("attention_partials", id, {Tensor(DType::kF32, {2, 9, 8, 64}), k, k}, "h100", {Int(3)}),
            "SEQ_TOO_LONG ");
}

}  // namespace
}  // namespace lz
