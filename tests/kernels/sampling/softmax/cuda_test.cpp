// The row of cuda.sampling.softmax; its results: tests/cuda_emulation, tests/gpu.
#include "tests/kernels/cuda.h"

namespace lz {
namespace {

class CudaSoftmax : public CudaRow {};

TEST_F(CudaSoftmax, TakesNarrowLogits) {
  RunsOnHopperNotOnTuring("softmax", "cuda.sampling.softmax", {Tensor(DType::kBF16, {4, 32000})}, {Float(0.7)});
}

TEST_F(CudaSoftmax, IsPreferredForVocabulariesOnDevicesWithClusters) {
  const auto priority = [&](int64_t vocab, const char* device) {
    return Priority("softmax", "cuda.sampling.softmax", {Tensor(DType::kBF16, {4, vocab})}, device, {Float(0.7)});
  };
  EXPECT_EQ(priority(1 << 14, "h100"), 80);
  EXPECT_EQ(priority((1 << 14) - 1, "h100"), 5);
  EXPECT_EQ(priority(1 << 14, "a100"), 5);
}

}  // namespace
}  // namespace lz
