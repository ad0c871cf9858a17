// The row of cuda.kv.compact; its results: tests/gpu.
#include "tests/kernels/cuda.h"

namespace lz {
namespace {

class CudaCompact : public CudaRow {};

TEST_F(CudaCompact, TakesBothIndices) {
  RunsOnHopperNotOnTuring(
      "kv_compact", "cuda.kv.compact",
      {Tensor(DType::kBF16, {2, 4, 2, 8}), Tensor(DType::kBF16, {2, 4, 2, 8}), Tensor(DType::kI64, {3, 2})});
  RunsOnHopperNotOnTuring(
      "kv_compact", "cuda.kv.compact",
      {Tensor(DType::kBF16, {2, 4, 2, 8}), Tensor(DType::kBF16, {2, 4, 2, 8}), Tensor(DType::kI32, {3, 2})});
}

}  // namespace
}  // namespace lz
