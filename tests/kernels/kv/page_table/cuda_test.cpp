// The row of cuda.kv.page_table; its results: tests/gpu.
#include "tests/kernels/cuda.h"

namespace lz {
namespace {

class CudaPageTable : public CudaRow {};

TEST_F(CudaPageTable, ServesBothWidthsOfIndices) {
  for (const DType type : {DType::kI32, DType::kI64}) {
    RunsOnHopperNotOnTuring("kv_page_table", "cuda.kv.page_table",
                            {Tensor(type, {3}), Tensor(type, {9}), Tensor(type, {2}), lz_tensor{.ndim = -1}},
                            {Int(8), Int(16), Int(0)});
  }
}

}  // namespace
}  // namespace lz
