// hwy.quantize.int8: bit for bit the reference on every instruction set; ties, saturation, NaN, infinity.
#include "ops/quantize/scaled.h"
#include "tests/kernels/call.h"

namespace lz::kernels {
extern const KernelFamily kernels_quantize_scaled_hwy_int8, ops_quantize_scaled_ref;
}  // namespace lz::kernels

namespace lz::testing_call {
namespace {

std::vector<char> Quantize(const KernelSpec& kernel, Array* x, double scale) {
  const lz_tensor in = x->tensor();
  std::vector<int64_t> shape(in.shape, in.shape + in.ndim);
  Array s(DType::kF32, {}), out(DType::kI8, shape);
  s.Set({scale});
  EXPECT_EQ(Launch(kernel, {x, &s, nullptr, nullptr, &out, nullptr},
                   {Scalar(int64_t{0}), lz_scalar{}, Scalar(int64_t{0}), Scalar(int64_t{1}), Scalar(int64_t{0})}),
            0);
  return out.bytes();
}

void ExpectLikeReference(Array* x, double scale) {
  const std::vector<char> want = Quantize(kernels::ops_quantize_scaled_ref[0], x, scale);
  ForEachTarget([&] { EXPECT_EQ(Quantize(kernels::kernels_quantize_scaled_hwy_int8[0], x, scale), want); });
}

TEST(HwyQuantizeInt8, EqualsTheReferenceBitForBit) {
  for (const DType type : kTestTypes)
    for (const int64_t k : {0, 1, 3, 15, 16, 17, 33, 100}) {
      Array x(type, {5, k}, 3);
      x.FillNormal(uint32_t(k), 3);
      ExpectLikeReference(&x, 0.03);
    }
}

TEST(HwyQuantizeInt8, TiesSaturationNaNAndInfinity) {
  const double nan = std::nan(""), inf = std::numeric_limits<double>::infinity();
  Array x(DType::kF32, {1, 20});
  x.Set(
      {0.5, 1.5, 2.5, -0.5, -1.5, 126.5, 127.5, 128, -127.5, -128, -1e30, 1e30, inf, -inf, nan, 0, -0.0, 1e-40, 3, 4});
  for (const double scale : {1.0, 0.0, 1e-40, inf, nan}) ExpectLikeReference(&x, scale);
}

}  // namespace
}  // namespace lz::testing_call
