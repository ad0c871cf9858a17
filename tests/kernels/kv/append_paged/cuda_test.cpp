// The row of cuda.kv.append_paged; its results: tests/gpu.
#include "tests/kernels/cuda.h"

namespace lz {
namespace {

class CudaAppendPaged : public CudaRow {};

TEST_F(CudaAppendPaged, TakesNarrowCaches) {
  RunsOnHopperNotOnTuring("kv_append_paged", "cuda.kv.append_paged",
                          {Tensor(DType::kBF16, {2, 4, 2, 8}), Tensor(DType::kBF16, {2, 4, 2, 8}),
                           Tensor(DType::kBF16, {3, 2, 8}), Tensor(DType::kBF16, {3, 2, 8}), Tensor(DType::kI64, {3})});
  const lz_tensor keys = Tensor(DType::kF8E4M3, {2, 4, 2, 8}), values = Tensor(DType::kF8E4M3, {2, 4, 2, 8});
  const lz_tensor rows = Tensor(DType::kBF16, {3, 2, 8}), slots = Tensor(DType::kI32, {3});
  RunsOnHopperNotOnTuring("kv_append_paged", "cuda.kv.append_paged", {keys, values, rows, rows, slots});
}

}  // namespace
}  // namespace lz
