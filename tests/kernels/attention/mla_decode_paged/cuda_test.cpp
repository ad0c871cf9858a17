// The rows of kernels/attention/mla_decode_paged/cuda.cu; their results: tests/gpu.
#include "tests/kernels/cuda.h"

namespace lz {
namespace {

class CudaMlaDecodePaged : public CudaRow {};

TEST_F(CudaMlaDecodePaged, TakesEntriesOfTheQuerysDType) {
  const lz_scalar scale = {{.f = 0.1}, 1};
  const auto call = [&](DType type) {
    return std::vector<lz_tensor>{Tensor(DType::kBF16, {2, 16, 512}),
                                  Tensor(DType::kBF16, {2, 16, 64}),
                                  Tensor(type, {5, 16, 512}),
                                  Tensor(type, {5, 16, 64}),
                                  Tensor(DType::kI32, {3}),
                                  Tensor(DType::kI32, {5}),
                                  Tensor(DType::kI32, {2})};
  };
  const char* id = "cuda.attention.mla.decode.paged";
  RunsOnHopperNotOnTuring("mla_decode_paged", id, call(DType::kBF16), {scale});
  EXPECT_EQ(Refusal("mla_decode_paged", id, call(DType::kF8E4M3), "h100", {scale}), "DTYPE_UNSUPPORTED ");
}

}  // namespace
}  // namespace lz
