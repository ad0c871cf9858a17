// The row of cuda.kv.gather; its results: tests/gpu.
#include "tests/kernels/cuda.h"

namespace lz {
namespace {

class CudaGather : public CudaRow {};

TEST_F(CudaGather, TakesNarrowCaches) {
  RunsOnHopperNotOnTuring("kv_gather", "cuda.kv.gather",
                          {Tensor(DType::kBF16, {2, 4, 2, 8}), Tensor(DType::kI64, {3})});
  RunsOnHopperNotOnTuring("kv_gather", "cuda.kv.gather",
                          {Tensor(DType::kF8E4M3, {2, 4, 2, 8}), Tensor(DType::kI32, {3})});
}

}  // namespace
}  // namespace lz
