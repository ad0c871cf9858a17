// hwy.convolution.causal_conv1d against FP64: a text in one call and in several, around its blocks of channels.
#include "ops/convolution/causal_conv1d.h"

#include <gtest/gtest.h>

#include "tests/kernels/call.h"

namespace lz::kernels {
extern const KernelFamily kernels_convolution_causal_conv1d_hwy, ops_convolution_causal_conv1d_ref;
}  // namespace lz::kernels

namespace lz {
namespace {
using namespace testing_call;

struct Sizes {
  int64_t b, s, c, k, n;
};

// What a kernel makes of a text of `z.s` positions in calls of at most `step`: outputs, then the last state.
std::vector<double> RunText(const KernelSpec& kernel, DType type, DType out_type, const Sizes& z, int64_t step,
                            bool silu) {
  Array weight(type, {z.c, z.k}, 1), state(type, {z.b, z.c, z.n}, 2), bias(type, {z.c});
  weight.FillNormal(1);
  state.FillNormal(2);
  bias.FillNormal(3);
  std::vector<double> all;
  for (int64_t t = 0; t < z.s; t += step) {
    const int64_t s = std::min(step, z.s - t);
    Array x(type, {z.b, s, z.c}, 3), out(out_type, {z.b, s, z.c}, 1);
    x.FillNormal(uint32_t(10 + t));
    EXPECT_EQ(Launch(kernel, {&x, &weight, &state, &bias, &out}, {Scalar(silu)}, {z.b, s, z.c, z.k, z.n}), 0);
    EXPECT_TRUE(out.PaddingUntouched() && state.PaddingUntouched());
    for (double value : out.Values()) all.push_back(value);
  }
  for (double value : state.Values()) all.push_back(value);
  return all;
}

void Check(DType type, const Sizes& z, int64_t step, bool silu) {
  const KernelSpec& reference = kernels::ops_convolution_causal_conv1d_ref[0];
  const std::vector<double> wanted = RunText(reference, type, DType::kF64, z, step, silu);
  const double bound = ToleranceOf(ops::convolution_causal_conv1d::kContract.tolerance, type);
  ForEachTarget([&] {
    ExpectClose(RunText(kernels::kernels_convolution_causal_conv1d_hwy[0], type, type, z, step, silu), wanted, bound);
  });
}

TEST(HwyCausalConv1d, AgreesWithFp64AroundItsBlocks) {
  for (const DType type : kTestTypes) {
    for (const int64_t c : {1, 15, 16, 17, 63, 64, 65, 130}) Check(type, {2, 5, c, 4, 4}, 5, true);
    for (const int64_t k : {1, 2, 4, 16}) Check(type, {1, 7, 20, k, 16}, 7, false);
  }
}

TEST(HwyCausalConv1d, GoesOnFromItsState) {
  for (const int64_t step : {1, 2, 3, 4, 7}) {
    for (const int64_t n : {3, 4, 6}) Check(DType::kF32, {2, 13, 21, 4, n}, step, true);
  }
}

}  // namespace
}  // namespace lz
