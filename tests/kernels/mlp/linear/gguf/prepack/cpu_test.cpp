// cpu.mlp.linear.gguf.prepack: byte for byte the reference's, and every value where PackedAt looks for it.
#include "ops/mlp/linear/gguf/prepack.h"
#include "tests/kernels/call.h"

namespace lz::kernels {
extern const KernelFamily kernels_mlp_linear_gguf_prepack_cpu, ops_mlp_linear_gguf_prepack_ref;
}  // namespace lz::kernels

namespace lz::testing_call {
namespace {
using namespace lz::ops::gguf;

TEST(GgufPrepackCpu, LikeTheReferenceAndReadBack) {
  std::mt19937 generator(1);
  std::uniform_int_distribution<int> bytes(0, 111);
  for (const Format format : {kQ4_0, kQ4_1, kQ8_0, kQ4_K, kQ6_K}) {
    const int64_t n = 21, k = 512, columns = kBlockColumns[format], row_bytes = k / columns * kBlockBytes[format];
    Array weight(DType::kU8, {n, row_bytes}, 5);
    std::vector<double> given(size_t(n * row_bytes));
    for (double& v : given) v = bytes(generator);
    weight.Set(given);
    Array want(DType::kU8, {2, PackedBytes(format, k)}), got(DType::kU8, {2, PackedBytes(format, k)});
    const std::vector<lz_scalar> scalars = {Scalar(k), Scalar(int64_t(format))};
    ASSERT_EQ(Launch(kernels::ops_mlp_linear_gguf_prepack_ref[0], {&weight, &want}, scalars), 0);
    const std::vector<double> packed = want.Values();
    for (int64_t row = 0; row < n; ++row) {
      for (int64_t i = 0; i < k; ++i) {
        const FileBlock block(format, [&](int64_t at) {
          return int(given[size_t(row * row_bytes + i / columns * kBlockBytes[format] + at)]);
        });
        const Parts parts = PackedAt(format, k, row, i, [&](int64_t at) {
          return int(packed[size_t(row / kGroupRows * PackedBytes(format, k) + at)]);
        });
        ASSERT_EQ(Value<float>(format, parts), Value<float>(format, block.At(i % columns))) << row << ", " << i;
      }
    }
    if (columns != 32) continue;
    ASSERT_EQ(Launch(kernels::kernels_mlp_linear_gguf_prepack_cpu[0], {&weight, &got}, scalars), 0);
    EXPECT_EQ(got.Values(), packed);
  }
}

}  // namespace
}  // namespace lz::testing_call
