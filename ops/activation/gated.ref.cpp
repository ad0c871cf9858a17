// Reference of activation.gated: FP64, any strides, any float dtype.
#include "ops/activation/gated.h"

#include "core/view.h"
#include "ops/common/reference.h"

namespace {
using namespace lz;
using namespace lz::ops::activation_gated;

int32_t Launch(const lz_kernel_args* args) {
  const View x(args->tensors[kInput]), out(args->tensors[kOutput]);
  const ops::activation::Gate gate(&args->scalars[kActivation]);
  const bool interleaved = args->scalars[kInterleaved].value.i;
  const int64_t n = x.size(-1) / 2;
  for (int64_t row = 0; row < x.rows(); ++row) {
    for (int64_t i = 0; i < n; ++i) {
      out.SetRow(row, i, gate(x.GetRow(row, interleaved ? 2 * i : i), x.GetRow(row, interleaved ? 2 * i + 1 : n + i)));
    }
  }
  return 0;
}

constexpr std::array kFamily = {ReferenceKernel("ref.activation.gated", &Launch)};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
