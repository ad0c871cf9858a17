// The rows of kernels/attention/sparse_block/cuda.cu; their results: tests/gpu.
#include "tests/kernels/cuda.h"

namespace lz {
namespace {

class CudaSparseBlock : public CudaRow {};

TEST_F(CudaSparseBlock, TakesBlocksOfAnySizeInSixteenBitsAndShortOnesInAll) {
  const char *id = "cuda.attention.sparse.block", *few = "cuda.attention.sparse.block.few";
  const auto call = [&](DType type, int64_t blocks) {
    const lz_tensor k = Tensor(type, {48, 2, 64}), q = Tensor(type, {16, 8, 64});
    return std::vector<lz_tensor>{q, k, k, Tensor(DType::kI32, {blocks + 1}), Tensor(DType::kI64, {5})};
  };
  RunsOnHopperNotOnTuring("block_sparse_attention", id, call(DType::kBF16, 1), {Int(16), Int(3)});
  RunsOnHopperNotOnTuring("block_sparse_attention", few, call(DType::kF32, 2), {Int(8), Int(48)});
  EXPECT_EQ(Refusal("block_sparse_attention", id, call(DType::kF32, 1), "h100", {Int(16), Int(3)}),
            "DTYPE_UNSUPPORTED ");
  EXPECT_NE(Refusal("block_sparse_attention", few, call(DType::kF32, 1), "h100", {Int(16), Int(3)}), "");
}

}  // namespace
}  // namespace lz
