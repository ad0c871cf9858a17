// The rows of kernels/attention/paged_cross/cuda.cu; their results: tests/gpu.
#include "tests/kernels/cuda.h"

namespace lz {
namespace {

class CudaPagedCross : public CudaRow {};

TEST_F(CudaPagedCross, TakesRowsAndTiles) {
  const lz_tensor q = Tensor(DType::kBF16, {2, 9, 8, 64}), cache = Tensor(DType::kBF16, {5, 16, 2, 64});
  const lz_tensor starts = Tensor(DType::kI32, {3}), pages = Tensor(DType::kI32, {5}), last = Tensor(DType::kI32, {2});
  for (const char* id : {"cuda.attention.cross.few.paged", "cuda.attention.cross.prefill.paged"}) {
    RunsOnHopperNotOnTuring("paged_cross_attention", id, {q, cache, cache, starts, pages, last});
  }
  const lz_tensor narrow = Tensor(DType::kF8E4M3, {5, 16, 2, 64});
  EXPECT_NE(
      Refusal("paged_cross_attention", "cuda.attention.cross.prefill.paged", {q, narrow, narrow, starts, pages, last}),
      "");
}

}  // namespace
}  // namespace lz
