// Reference of activation.pointwise: FP64, any strides, any float dtype; output may alias input.
#include "ops/activation/pointwise.h"

#include "core/view.h"
#include "ops/common/reference.h"

namespace {
using namespace lz;
using namespace lz::ops::activation_pointwise;

int32_t Launch(const lz_kernel_args* args) {
  const View x(args->tensors[kInput]), out(args->tensors[kOutput]);
  const int64_t function = args->scalars[kFunction].value.i;
  if (x.ndim() == 0) {
    out.Store(0, ops::activation::Apply(function, x.Load(0)));
    return 0;
  }
  for (int64_t row = 0; row < x.rows(); ++row) {
    for (int64_t i = 0; i < x.size(-1); ++i) out.SetRow(row, i, ops::activation::Apply(function, x.GetRow(row, i)));
  }
  return 0;
}

constexpr std::array kFamily = {ReferenceKernel("ref.activation.pointwise", &Launch)};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
