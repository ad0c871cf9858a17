// The row of cuda.quantize.asymmetric; its results: tests/cuda_emulation, tests/gpu.
#include "tests/kernels/cuda.h"

namespace lz {
namespace {

class CudaAsymmetric : public CudaRow {};

TEST_F(CudaAsymmetric, PacksGroupsOfWholeBytes) {
  const auto refusal = [&](const char* kernel, int64_t format, int64_t group) {
    return Refusal("quantize_asymmetric", kernel, {Tensor(DType::kBF16, {8, 96})}, "h100",
                   {Int(format), Left(), Int(group), Int(1)});
  };
  EXPECT_EQ(refusal("cuda.quantize.asymmetric.groups", 1, 3), "");
  EXPECT_EQ(refusal("cuda.quantize.asymmetric.groups", 3, 32), "QUANT_FORMAT_UNSUPPORTED ");
  EXPECT_EQ(refusal("cuda.quantize.asymmetric.groups.paired", 3, 32), "");
  EXPECT_EQ(refusal("cuda.quantize.asymmetric.groups.paired", 3, 3), "QUANT_GRANULARITY ");
  RunsOnHopperNotOnTuring("quantize_asymmetric", "cuda.quantize.asymmetric.rows", {Tensor(DType::kF32, {8, 96})},
                          {Int(3), Int(0), Int(0), Int(1)});
}

}  // namespace
}  // namespace lz
