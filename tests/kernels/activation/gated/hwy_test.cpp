// hwy.activation.gated against FP64: activations, the clamp at and beyond its limits, strides, NaN.
#include "ops/activation/gated.h"

#include <gtest/gtest.h>

#include "tests/kernels/against_reference.h"

namespace lz::kernels {
extern const KernelFamily kernels_activation_gated_hwy, ops_activation_gated_ref;
}  // namespace lz::kernels

namespace lz {
namespace {
using namespace testing_call;

const Pair kPair = {&kernels::kernels_activation_gated_hwy[0], &kernels::ops_activation_gated_ref[0],
                    ops::activation_gated::kContract.tolerance};

TEST(HwyGated, AgreesWithFp64WithAndWithoutTheClamp) {
  const lz_scalar no_limit = {}, limit = Scalar(2.0);
  for (const DType type : kTestTypes) {
    for (int64_t activation = 0; activation <= ops::activation::kIdentity; ++activation) {
      for (const int64_t n : {1, 17, 64, 2500}) {
        SCOPED_TRACE(std::string(Info(type).name) + " activation " + std::to_string(activation));
        Array x(type, {3, 2 * n}, 3), out(type, {3, n}, n % 2);
        x.FillNormal(1, 4);
        const lz_scalar alpha = Scalar(activation == ops::activation::kSilu ? 1.702 : 1.0);
        ExpectAgrees(kPair, {&x}, out, {Scalar(activation), limit, alpha, Scalar(1.0), Scalar(false)});
        ExpectAgrees(kPair, {&x}, out, {Scalar(activation), no_limit, Scalar(1.0), Scalar(0.0), Scalar(false)});
      }
    }
  }
}

TEST(HwyGated, TheClampKeepsNaNAndTakesInfinities) {
  for (const DType type : kTestTypes) {
    Array x(type, {1, 12}), out(type, {1, 6});
    x.Set({NAN, INFINITY, 7, 7.5, -INFINITY, 1, 1, INFINITY, -INFINITY, -8, 2, NAN});
    ExpectAgrees(kPair, {&x}, out, {Scalar(int64_t{0}), Scalar(7.0), Scalar(1.0), Scalar(0.0), Scalar(false)});
  }
}

}  // namespace
}  // namespace lz
