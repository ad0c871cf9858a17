// hwy.activation.swiglu against FP64: sizes around vector widths, dense and strided rows, aliasing, NaN.
#include "ops/activation/swiglu.h"

#include <gtest/gtest.h>

#include "tests/kernels/activation/gated_testing.h"

namespace lz::kernels {
extern const KernelFamily kernels_activation_swiglu_hwy;
}

namespace lz {
namespace {
using namespace testing_call;

const KernelSpec& Kernel() { return kernels::kernels_activation_swiglu_hwy[0]; }

const Gated kSwiglu = {&Kernel(), [](double x) { return x / (1 + std::exp(-x)); },
                       ops::activation_swiglu::kContract.tolerance};

TEST(HwySwiglu, AgreesWithFp64AtEverySizeAndDType) { CheckGatedSizesAndDTypes(kSwiglu); }
TEST(HwySwiglu, TakesAnyRowsAndMayWriteOverItsInputs) { CheckGatedStridesAliasingAndNaN(kSwiglu); }

}  // namespace
}  // namespace lz
