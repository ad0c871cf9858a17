// The row of cuda.kv.compact; its results: tests/cuda_emulation, tests/gpu.
#include "tests/kernels/cuda.h"

namespace lz {
namespace {

class CudaCompact : public CudaRow {};

TEST_F(CudaCompact, TakesNarrowCaches) {
  for (const DType type : {DType::kBF16, DType::kF8E4M3}) {
    RunsOnHopperNotOnTuring("kv_compact", "cuda.kv.compact",
                            {Tensor(type, {6, 4, 2, 8}), Tensor(type, {6, 4, 2, 16}), Tensor(DType::kI64, {3, 2})});
  }
}

}  // namespace
}  // namespace lz
