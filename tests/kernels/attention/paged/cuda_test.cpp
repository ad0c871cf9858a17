// The rows of kernels/attention/paged/cuda.cu; their results: tests/gpu.
#include "tests/kernels/cuda.h"

namespace lz {
namespace {

class CudaPagedAttention : public CudaRow {};

TEST_F(CudaPagedAttention, TakesNarrowCaches) {
  const lz_tensor q = Tensor(DType::kBF16, {2, 8, 64}), index = Tensor(DType::kI32, {2});
  for (const DType type : {DType::kBF16, DType::kF8E4M3, DType::kI8}) {
    const lz_tensor cache = Tensor(type, {5, 16, 2, 64}), scale = Tensor(DType::kF32, {2});
    RunsOnHopperNotOnTuring("paged_decode_attention", "cuda.attention.gqa.decode.paged",
                            {q,
                             cache,
                             cache,
                             Tensor(DType::kI32, {3}),
                             Tensor(DType::kI32, {5}),
                             index,
                             {.ndim = -1},
                             {.ndim = -1},
                             scale,
                             scale});
    RunsOnHopperNotOnTuring("paged_attention", "cuda.attention.gqa.decode.block_table",
                            {Tensor(DType::kBF16, {2, 1, 8, 64}),
                             cache,
                             cache,
                             Tensor(DType::kI32, {2, 3}),
                             index,
                             {.ndim = -1},
                             {.ndim = -1},
                             scale,
                             scale});
  }
}

}  // namespace
}  // namespace lz
