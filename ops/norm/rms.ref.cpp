// Reference of norm.rms: FP64 accumulation, any strides, any float dtype; output may alias input.
#include "ops/norm/rms.h"

#include "core/view.h"
#include "ops/common/reference.h"

namespace {
using namespace lz;
using namespace lz::ops::norm_rms;

int32_t Launch(const lz_kernel_args* args) {
  const View x(args->tensors[kInput]), w(args->tensors[kWeight]), out(args->tensors[kOutput]);
  const double eps = args->scalars[kEps].value.f, offset = args->scalars[kWeightOffset].value.f;
  const int64_t hidden = x.size(-1);
  for (int64_t row = 0; row < x.rows(); ++row) {
    double sum = 0;
    for (int64_t i = 0; i < hidden; ++i) sum += x.GetRow(row, i) * x.GetRow(row, i);
    const double scale = 1.0 / std::sqrt(sum / double(hidden) + eps);
    for (int64_t i = 0; i < hidden; ++i) {
      const double gain = (w.given() ? w.Get({i}) : 1.0) + offset;
      out.SetRow(row, i, x.GetRow(row, i) * scale * gain);
    }
  }
  return 0;
}

constexpr std::array kFamily = {ReferenceKernel("ref.norm.rms", &Launch)};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
