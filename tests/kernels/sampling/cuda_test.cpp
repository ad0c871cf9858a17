// The rows of cuda.sampling.{minp,topk,topk_topp,topp}; their results: tests/cuda_emulation, tests/gpu.
#include "tests/kernels/cuda.h"

namespace lz {
namespace {

class CudaSample : public CudaRow {
 protected:
  // `filter`: the scalars before temperature, seed and offset.
  void TakesLargeVocabularies(const char* operation, const char* kernel, std::vector<lz_scalar> filter) {
    filter.insert(filter.end(), {Float(1.0), Int(1), Int(0)});
    const auto logits = [this](DType type, int64_t vocab) { return std::vector{Tensor(type, {4, vocab})}; };
    RunsOnHopperNotOnTuring(operation, kernel, logits(DType::kBF16, 262144), filter);
    EXPECT_EQ(Priority(operation, kernel, logits(DType::kBF16, 262144), "h100", filter), 80);
    EXPECT_EQ(Priority(operation, kernel, logits(DType::kBF16, 262144), "a100", filter), 5);  // no clusters
    EXPECT_EQ(Refusal(operation, kernel, logits(DType::kF32, (1 << 22) + 1), "h100", filter), "SHAPE_UNSUPPORTED ");
    EXPECT_EQ(Refusal(operation, kernel, logits(DType::kF64, 1024), "h100", filter), "DTYPE_UNSUPPORTED ");
  }
};

TEST_F(CudaSample, MinP) { TakesLargeVocabularies("sample_minp", "cuda.sampling.minp", {Float(0.1)}); }
TEST_F(CudaSample, TopK) { TakesLargeVocabularies("sample_topk", "cuda.sampling.topk", {Int(50)}); }
TEST_F(CudaSample, TopKTopP) {
  TakesLargeVocabularies("sample_topk_topp", "cuda.sampling.topk_topp", {Int(50), Float(0.9)});
}
TEST_F(CudaSample, TopP) { TakesLargeVocabularies("sample_topp", "cuda.sampling.topp", {Float(0.9)}); }

}  // namespace
}  // namespace lz
