// Reference of elementwise.cast: through FP64, any strides.
#include "ops/elementwise/cast.h"

#include "core/view.h"
#include "ops/common/reference.h"

namespace {
using namespace lz;
using namespace lz::ops::elementwise_cast;

int32_t Launch(const lz_kernel_args* args) {
  const View x(args->tensors[kInput]), out(args->tensors[kOutput]);
  if (x.ndim() == 0) {
    out.Store(0, x.Load(0));
    return 0;
  }
  for (int64_t row = 0; row < x.rows(); ++row) {
    for (int64_t i = 0; i < x.size(-1); ++i) out.SetRow(row, i, x.GetRow(row, i));
  }
  return 0;
}

constexpr std::array kFamily = {ReferenceKernel("ref.elementwise.cast", &Launch)};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
