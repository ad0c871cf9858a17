// Activations, emulated: as precise as FP32 allows on both tails, and right where a thread has several vectors.
#include <gtest/gtest.h>

#include "ops/activation/gated.h"
#include "ops/activation/pointwise.h"
#include "tests/kernels/sampling/sampling_testing.h"

namespace lz::kernels {
extern const KernelFamily kernels_activation_pointwise_cuda, kernels_activation_gated_cuda;
}  // namespace lz::kernels

namespace lz {
namespace {
using namespace lz::sampling_testing;
using ops::activation::Apply;

constexpr int64_t kFunctions = ops::activation::kIdentity + 1;

// Vectors of 16 bytes, and single elements from an address that has none.
TEST(EmulatedActivations, KeepTheirRelativePrecision) {
  constexpr int64_t kN = 2 * 14000;
  for (const int64_t offset : {0, 1}) {
    Owned x(DType::kF32, {1, kN + 1}), out(DType::kF32, {1, kN + 1});
    for (int64_t i = 0; i <= kN; ++i) x.view().SetRow(0, i, double(i - kN / 2) / 1000);
    for (int64_t function = 0; function < kFunctions; ++function) {
      // The cube's rounding is exp's, up to 250 of it.
      const double relative = function == ops::activation::kGeluTanh ? 4e-5 : 4e-6;
      Call call({&x, &out}, {I(function)});
      for (lz_tensor& t : call.tensors) t.byte_offset = uint64_t(offset) * 4;
      std::vector<int64_t> shape = {1, kN};
      for (lz_tensor& t : call.tensors) t.shape = shape.data();
      ASSERT_EQ(call.Run(kernels::kernels_activation_pointwise_cuda[0]), 0);
      for (int64_t i = offset; i < kN; ++i) {
        const double want = Apply(function, x.view().GetRow(0, i)), got = out.view().GetRow(0, i);
        ASSERT_NEAR(got, want, relative * std::abs(want) + 1e-37) << function << " at " << x.view().GetRow(0, i);
      }
    }
  }
}

TEST(EmulatedActivations, SeveralVectorsOfAThread) {
  constexpr int64_t kN = (int64_t{1} << 20) + 4 * 777;
  Owned x(DType::kF32, {1, 2 * kN}), out(DType::kF32, {1, kN}), all(DType::kF32, {1, 2 * kN});
  float* const values = reinterpret_cast<float*>(x.bytes.data());
  for (int64_t i = 0; i < 2 * kN; ++i) values[i] = float(i % 8191 - 4000) / 512;
  Call alone({&x, &all}, {I(ops::activation::kRelu)});
  ASSERT_EQ(alone.Run(kernels::kernels_activation_pointwise_cuda[0]), 0);
  const float* const relu = reinterpret_cast<const float*>(all.bytes.data());
  for (int64_t i = 0; i < 2 * kN; ++i) ASSERT_EQ(relu[i], std::max(values[i], 0.0f)) << i;
  for (const bool pairs : {false, true}) {
    Call call({&x, &out}, {I(ops::activation::kRelu), {}, F(1), F(0), I(pairs)});
    ASSERT_EQ(call.Run(kernels::kernels_activation_gated_cuda[0]), 0);
    const float* const got = reinterpret_cast<const float*>(out.bytes.data());
    for (int64_t i = 0; i < kN; ++i) {
      const float gate = values[pairs ? 2 * i : i], up = values[pairs ? 2 * i + 1 : kN + i];
      ASSERT_EQ(got[i], std::max(gate, 0.0f) * up) << i << " " << pairs;
    }
  }
}

}  // namespace
}  // namespace lz
