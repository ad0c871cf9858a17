// The rows of kernels/attention/sparse_variable_block/cuda.cu; their results: tests/gpu.
#include "tests/kernels/cuda.h"

namespace lz {
namespace {

class CudaSparseVariableBlock : public CudaRow {};

TEST_F(CudaSparseVariableBlock, TakesSixteenBits) {
  const char* id = "cuda.attention.sparse.variable_block";
  const auto call = [&](DType type, int64_t d) {
    const lz_tensor k = Tensor(type, {48, 2, d}), q = Tensor(type, {16, 8, d});
    return std::vector<lz_tensor>{
        q, k, k, Tensor(DType::kBool, {2, 3, 4}), Tensor(DType::kI64, {2, 3}), Tensor(DType::kI32, {2, 4})};
  };
  RunsOnHopperNotOnTuring("variable_block_sparse_attention", id, call(DType::kBF16, 128));
  EXPECT_EQ(Refusal("variable_block_sparse_attention", id, call(DType::kF32, 128)), "DTYPE_UNSUPPORTED ");
  RunsOnHopperNotOnTuring("variable_block_sparse_attention", "cuda.attention.sparse.variable_block.fp32",
                          call(DType::kF32, 128));
  EXPECT_NE(Refusal("variable_block_sparse_attention", id, call(DType::kF16, 60)), "");
}

}  // namespace
}  // namespace lz
