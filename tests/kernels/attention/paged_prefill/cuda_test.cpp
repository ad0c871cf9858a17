// The rows of kernels/attention/paged_prefill/cuda.cu; their results: tests/gpu.
#include "tests/kernels/cuda.h"

namespace lz {
namespace {

class CudaPagedPrefill : public CudaRow {};

TEST_F(CudaPagedPrefill, TakesSixteenBitsOrFP32) {
  const auto call = [&](DType type) {
    return std::vector<lz_tensor>{Tensor(type, {9, 8, 64}), Tensor(type, {5, 16, 2, 64}), Tensor(type, {5, 16, 2, 64}),
                                  Tensor(DType::kI32, {3}), Tensor(DType::kI32, {3}),     Tensor(DType::kI32, {5}),
                                  Tensor(DType::kI32, {2})};
  };
  const char* id = "cuda.attention.gqa.prefill.paged";
  RunsOnHopperNotOnTuring("paged_prefill_attention", id, call(DType::kF16));
  EXPECT_EQ(Refusal("paged_prefill_attention", id, call(DType::kF32)), "DTYPE_UNSUPPORTED ");
  RunsOnHopperNotOnTuring("paged_prefill_attention", "cuda.attention.gqa.prefill.paged.fp32", call(DType::kF32));
}

}  // namespace
}  // namespace lz
