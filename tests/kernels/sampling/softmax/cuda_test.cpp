// The row of cuda.sampling.softmax; its results: tests/cuda_emulation, tests/gpu.
#include "tests/kernels/cuda.h"

namespace lz {
namespace {

class CudaSoftmax : public CudaRow {};

TEST_F(CudaSoftmax, TakesNarrowLogits) {
  RunsOnHopperNotOnTuring("softmax", "cuda.sampling.softmax", {Tensor(DType::kBF16, {4, 32000})}, {Float(0.7)});
}

TEST_F(CudaSoftmax, VocabulariesGoToClusters) {
  RunsOnHopperNotOnTuring("softmax", "cuda.sampling.softmax.long", {Tensor(DType::kBF16, {4, 32000})}, {Float(0.7)});
  EXPECT_EQ(Refusal("softmax", "cuda.sampling.softmax.long", {Tensor(DType::kBF16, {4, 1000})}, "h100", {Float(0.7)}),
            "SHAPE_UNSUPPORTED ");
}

}  // namespace
}  // namespace lz
