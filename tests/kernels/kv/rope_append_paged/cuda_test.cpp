// The row of cuda.kv.rope_append_paged; its results: tests/gpu.
#include "tests/kernels/cuda.h"

namespace lz {
namespace {

class CudaRopeAppendPaged : public CudaRow {
 protected:
  std::vector<lz_tensor> Call(DType cache, DType table) {
    const lz_tensor query = Tensor(DType::kBF16, {3, 4, 64}), key = Tensor(DType::kBF16, {3, 2, 64});
    const lz_tensor cos = Tensor(table, {3, 32}), sin = Tensor(table, {3, 32});
    const lz_tensor keys = Tensor(cache, {2, 4, 2, 64}), values = Tensor(cache, {2, 4, 2, 64});
    return {query, key, key, cos, sin, keys, values, Tensor(DType::kI64, {3})};
  }
};

TEST_F(CudaRopeAppendPaged, TakesNarrowCaches) {
  RunsOnHopperNotOnTuring("kv_rope_append_paged", "cuda.kv.rope_append_paged", Call(DType::kBF16, DType::kF32));
  RunsOnHopperNotOnTuring("kv_rope_append_paged", "cuda.kv.rope_append_paged", Call(DType::kF8E4M3, DType::kBF16));
}

TEST_F(CudaRopeAppendPaged, RefusesTablesInDoublePrecision) {
  EXPECT_EQ(Refusal("kv_rope_append_paged", "cuda.kv.rope_append_paged", Call(DType::kBF16, DType::kF64)),
            "DTYPE_UNSUPPORTED ");
}

}  // namespace
}  // namespace lz
