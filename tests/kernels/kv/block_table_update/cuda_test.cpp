// The row of cuda.kv.block_table_update; its results: tests/gpu.
#include "tests/kernels/cuda.h"

namespace lz {
namespace {

class CudaBlockTableUpdate : public CudaRow {};

TEST_F(CudaBlockTableUpdate, ComparesSomeUpdates) {
  RunsOnHopperNotOnTuring("kv_block_table_update", "cuda.kv.block_table_update",
                          {Tensor(DType::kI32, {2, 4}), Tensor(DType::kI64, {3, 3})});
  EXPECT_EQ(Refusal("kv_block_table_update", "cuda.kv.block_table_update",
                    {Tensor(DType::kI32, {2, 4}), Tensor(DType::kI64, {16385, 3})}, "h100"),
            "SHAPE_UNSUPPORTED ");
}

}  // namespace
}  // namespace lz
