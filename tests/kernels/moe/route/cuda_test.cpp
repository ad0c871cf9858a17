// The row of cuda.moe.route; its results: tests/gpu.
#include "tests/kernels/cuda.h"

namespace lz {
namespace {

class CudaRoute : public CudaRow {};

TEST_F(CudaRoute, HasRoomForItsExperts) {
  RunsOnHopperNotOnTuring("moe_route", "cuda.moe.route", {Tensor(DType::kBF16, {2, 512})}, {Int(4)});
  EXPECT_EQ(Refusal("moe_route", "cuda.moe.route", {Tensor(DType::kBF16, {2, 513})}, "h100", {Int(4)}),
            "SHAPE_UNSUPPORTED ");
}

}  // namespace
}  // namespace lz
