// The rows of kernels/attention/dense/cuda.cu; their results: tests/gpu.
#include "tests/kernels/cuda.h"

namespace lz {
namespace {

class CudaAttention : public CudaRow {};

TEST_F(CudaAttention, DecodesHeadsOfWholeVectors) {
  const char *decode = "cuda.attention.gqa.decode", *few = "cuda.attention.gqa.few";
  const lz_tensor k = Tensor(DType::kBF16, {2, 40, 2, 72}), odd = Tensor(DType::kBF16, {2, 40, 2, 76});
  RunsOnHopperNotOnTuring("attention", decode, {Tensor(DType::kBF16, {2, 1, 8, 72}), k, k});
  RunsOnHopperNotOnTuring("attention", few, {Tensor(DType::kBF16, {2, 8, 8, 72}), k, k});
  EXPECT_EQ(Refusal("attention", few, {Tensor(DType::kBF16, {2, 9, 8, 72}), k, k}), "SEQ_TOO_LONG ");
  EXPECT_NE(Refusal("attention", decode, {Tensor(DType::kBF16, {2, 1, 8, 76}), odd, odd}), "");
}

TEST_F(CudaAttention, PrefillsInSixteenBits) {
  const char* id = "cuda.attention.standard.prefill";
  const lz_tensor x = Tensor(DType::kF16, {1, 40, 2, 128}), wide = Tensor(DType::kF32, {1, 40, 2, 128});
  RunsOnHopperNotOnTuring("attention", id, {x, x, x});
  EXPECT_EQ(Refusal("attention", id, {wide, wide, wide}), "DTYPE_UNSUPPORTED ");
}

TEST_F(CudaAttention, PrefillsInFloat32) {
  const char* id = "cuda.attention.standard.prefill.fp32";
  const lz_tensor x = Tensor(DType::kF32, {1, 40, 2, 256}), half = Tensor(DType::kF16, {1, 40, 2, 128});
  RunsOnHopperNotOnTuring("attention", id, {x, x, x});
  EXPECT_EQ(Refusal("attention", id, {half, half, half}), "DTYPE_UNSUPPORTED ");
  const lz_tensor wide = Tensor(DType::kF32, {1, 40, 2, 264});
  EXPECT_NE(Refusal("attention", id, {wide, wide, wide}), "");
}

TEST_F(CudaAttention, WideHeadsNeedSharedMemory) {
  for (const char* id : {"cuda.attention.standard.prefill", "cuda.attention.standard.decode.mma"}) {
    const int64_t queries = std::string_view(id).ends_with("mma") ? 1 : 40;
    const auto lacks = [&](int64_t d, const char* device) {
      const lz_tensor q = Tensor(DType::kF16, {1, queries, 2, d}), k = Tensor(DType::kF16, {1, 40, 2, d});
      return Refusal("attention", id, {q, k, k}, device).find("DEVICE_CAPABILITY_UNSUPPORTED ") != std::string::npos;
    };
    EXPECT_FALSE(lacks(128, "l4"));
    EXPECT_TRUE(lacks(136, "l4"));
    EXPECT_FALSE(lacks(256, "a100"));
    EXPECT_FALSE(lacks(264, "l4")) << "queries are in registers";
    EXPECT_FALSE(lacks(512, "l4"));
  }
}

TEST_F(CudaAttention, TilesTakeHeadsOf512Columns) {
  const auto tensors = [&](int64_t d_qk, int64_t d_v) {
    return std::vector<lz_tensor>{Tensor(DType::kBF16, {1, 40, 4, d_qk}), Tensor(DType::kBF16, {1, 600, 2, d_qk}),
                                  Tensor(DType::kBF16, {1, 600, 2, d_v})};
  };
  const char *tiles = "cuda.attention.gqa.prefill", *groups = "cuda.attention.gqa.prefill.wgmma";
  RunsOnHopperNotOnTuring("attention", tiles, tensors(512, 512));
  EXPECT_NE(Refusal("attention", tiles, tensors(520, 512)), "");
  EXPECT_NE(Refusal("attention", tiles, tensors(512, 520)), "");
  EXPECT_NE(Refusal("attention", groups, tensors(264, 256)), "");
  EXPECT_NE(Refusal("attention", groups, tensors(256, 264)), "");
  const int before_expressions = Priority("attention", tiles, tensors(512, 512), "h100");
  EXPECT_EQ(Priority("attention", tiles, tensors(64, 264), "h100"), before_expressions);
  EXPECT_LT(before_expressions, Priority("attention", tiles, tensors(256, 256), "h100")) << "not measured";
}

}  // namespace
}  // namespace lz
