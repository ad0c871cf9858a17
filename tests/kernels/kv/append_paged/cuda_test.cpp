// The row of cuda.kv.append_paged; its results: tests/gpu.
#include "tests/kernels/cuda.h"

namespace lz {
namespace {

class CudaAppendPaged : public CudaRow {};

TEST_F(CudaAppendPaged, TakesNarrowCaches) {
  RunsOnHopperNotOnTuring("kv_append_paged", "cuda.kv.append_paged",
                          {Tensor(DType::kBF16, {2, 4, 2, 8}), Tensor(DType::kBF16, {2, 4, 2, 8}),
                           Tensor(DType::kBF16, {3, 2, 8}), Tensor(DType::kBF16, {3, 2, 8}), Tensor(DType::kI64, {3})});
  const lz_tensor cache = Tensor(DType::kF8E4M3, {2, 4, 2, 8}), rows = Tensor(DType::kBF16, {3, 2, 8});
  RunsOnHopperNotOnTuring("kv_append_paged", "cuda.kv.append_paged",
                          {cache, cache, rows, rows, Tensor(DType::kI32, {3})});
}

}  // namespace
}  // namespace lz
