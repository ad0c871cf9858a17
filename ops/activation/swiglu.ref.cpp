// Reference of activation.swiglu: FP64, any strides, any float dtype; output may alias an input.
#include "ops/activation/swiglu.h"

#include "core/view.h"
#include "ops/common/reference.h"

namespace {
using namespace lz;
using namespace lz::ops::activation_swiglu;

int32_t Launch(const lz_kernel_args* args) {
  const View gate(args->tensors[kGate]), up(args->tensors[kUp]), out(args->tensors[kOutput]);
  for (int64_t row = 0; row < gate.rows(); ++row) {
    for (int64_t i = 0; i < gate.size(-1); ++i) {
      const double g = gate.GetRow(row, i);
      out.SetRow(row, i, g / (1.0 + std::exp(-g)) * up.GetRow(row, i));
    }
  }
  return 0;
}

constexpr std::array kFamily = {ReferenceKernel("ref.activation.swiglu", &Launch)};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
