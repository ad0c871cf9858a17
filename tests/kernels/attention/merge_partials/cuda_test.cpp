// The rows of kernels/attention/merge_partials/cuda.cu; their results: tests/gpu.
#include "tests/kernels/cuda.h"

namespace lz {
namespace {

class CudaMergePartials : public CudaRow {};

TEST_F(CudaMergePartials, TakesSumsAndEveryOutput) {
  const lz_tensor v = Tensor(DType::kF32, {5, 3, 4, 64}), s = Tensor(DType::kF32, {5, 3, 4});
  for (const int64_t dtype : {0, 1, 2}) {
    RunsOnHopperNotOnTuring("merge_partials", "cuda.attention.merge.partials", {v, s, s}, {Int(dtype)});
  }
}

}  // namespace
}  // namespace lz
