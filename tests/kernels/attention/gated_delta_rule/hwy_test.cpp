// hwy.attention.gated_delta_rule against FP64: a text in one call and in several, around its blocks of columns and
// positions.
#include "ops/attention/gated_delta_rule.h"

#include <gtest/gtest.h>

#include "tests/kernels/call.h"

namespace lz::kernels {
extern const KernelFamily kernels_attention_gated_delta_rule_hwy, ops_attention_gated_delta_rule_ref;
}  // namespace lz::kernels

namespace lz {
namespace {
using namespace testing_call;

struct Sizes {
  int64_t b, s, h_k, d_k, h_v, d_v;
};

// What a kernel makes of a text of `z.s` positions in calls of at most `step`: outputs, then the last state.
std::vector<double> RunText(const KernelSpec& kernel, DType type, DType out_type, const Sizes& z, int64_t step) {
  Array state(DType::kF32, {z.b, z.h_v, z.d_k, z.d_v}), a_log(DType::kF32, {z.h_v}), dt_bias(DType::kF32, {z.h_v});
  state.FillNormal(1);
  a_log.FillNormal(2);
  dt_bias.FillNormal(3);
  std::vector<double> all;
  for (int64_t t = 0; t < z.s; t += step) {
    const int64_t s = std::min(step, z.s - t);
    Array q(type, {z.b, s, z.h_k, z.d_k}, 2), k(type, {z.b, s, z.h_k, z.d_k}, 1), v(type, {z.b, s, z.h_v, z.d_v});
    Array g(type, {z.b, s, z.h_v}, 3), beta(type, {z.b, s, z.h_v}), out(out_type, {z.b, s, z.h_v, z.d_v}, 1);
    uint32_t seed = uint32_t(10 * t);
    for (Array* array : {&q, &k, &v, &g, &beta}) array->FillNormal(++seed);
    const lz_scalar scalars[] = {Scalar(0.125), Scalar(1e-6), Scalar(1.0)};
    EXPECT_EQ(Launch(kernel, {&q, &k, &v, &g, &beta, &state, &a_log, &dt_bias, &out}, {scalars, scalars + 3},
                     {z.b, s, z.h_k, z.d_k, z.h_v, z.d_v}),
              0);
    EXPECT_TRUE(out.PaddingUntouched());
    for (double value : out.Values()) all.push_back(value);
  }
  for (double value : state.Values()) all.push_back(value);
  return all;
}

void Check(DType type, const Sizes& z, int64_t step) {
  const std::vector<double> wanted =
      RunText(kernels::ops_attention_gated_delta_rule_ref[0], type, DType::kF64, z, step);
  const double bound = ToleranceOf(ops::attention_gated_delta_rule::kContract.tolerance, type);
  ForEachTarget([&] {
    ExpectClose(RunText(kernels::kernels_attention_gated_delta_rule_hwy[0], type, type, z, step), wanted, bound);
  });
}

TEST(HwyGatedDeltaRule, AgreesWithFp64AroundItsBlocks) {
  for (const DType type : kTestTypes) {
    for (const int64_t s : {1, 2, 15, 16, 17, 33}) Check(type, {1, s, 2, 24, 4, 40}, s);
    for (const int64_t d_v : {1, 15, 16, 31, 64, 65, 128}) Check(type, {2, 3, 1, 17, 1, d_v}, 3);
    for (const int64_t d_k : {1, 16, 255, 256}) Check(type, {1, 3, 1, d_k, 3, 33}, 3);
  }
}

TEST(HwyGatedDeltaRule, GoesOnFromItsState) {
  for (const int64_t step : {1, 5, 16, 20}) Check(DType::kF32, {2, 21, 1, 32, 2, 70}, step);
}

}  // namespace
}  // namespace lz
