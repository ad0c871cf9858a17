// Reference of activation.silu_and_mul: FP64, any strides, any float dtype; output may alias an input.
#include "ops/activation/silu_and_mul.h"

#include "core/view.h"
#include "ops/common/reference.h"

namespace {
using namespace lz;
using namespace lz::ops::activation_silu_and_mul;

int32_t Launch(const lz_kernel_args* args) {
  const View x(args->tensors[kInput]), out(args->tensors[kOutput]);
  const int64_t n = x.size(-1) / 2;
  for (int64_t row = 0; row < x.rows(); ++row) {
    for (int64_t i = 0; i < n; ++i) {
      const double g = x.GetRow(row, i);
      out.SetRow(row, i, g / (1.0 + std::exp(-g)) * x.GetRow(row, n + i));
    }
  }
  return 0;
}

constexpr std::array kFamily = {ReferenceKernel("ref.activation.silu_and_mul", &Launch)};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
