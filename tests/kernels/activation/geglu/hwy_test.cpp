// hwy.activation.geglu against FP64: sizes around vector widths, dense and strided rows, aliasing, NaN.
#include "ops/activation/geglu.h"

#include <gtest/gtest.h>

#include "tests/kernels/activation/gated_testing.h"

namespace lz::kernels {
extern const KernelFamily kernels_activation_geglu_hwy;
}

namespace lz {
namespace {
using namespace testing_call;

const KernelSpec& Kernel() { return kernels::kernels_activation_geglu_hwy[0]; }

const Tolerance kTolerance = ops::activation_geglu::kContract.tolerance;
const Gated kErf = {&Kernel(),
                    [](double x) { return 0.5 * x * std::erfc(-x / std::sqrt(2.0)); },
                    kTolerance,
                    {Scalar(int64_t{ops::activation_geglu::kNone})}};
const Gated kTanh = {
    &Kernel(),
    [](double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); },
    kTolerance,
    {Scalar(int64_t{ops::activation_geglu::kTanh})}};

TEST(HwyGeglu, AgreesWithFp64AtEverySizeAndDType) {
  CheckGatedSizesAndDTypes(kErf);
  CheckGatedSizesAndDTypes(kTanh);
}
TEST(HwyGeglu, TakesAnyRowsAndMayWriteOverItsInputs) {
  CheckGatedStridesAliasingAndNaN(kErf);
  CheckGatedStridesAliasingAndNaN(kTanh);
}

}  // namespace
}  // namespace lz
