// Reference of norm.rms.residual: FP64 accumulation, any strides, any float dtype.
#include "ops/norm/rms_residual.h"

#include "core/view.h"
#include "ops/common/reference.h"

namespace {
using namespace lz;
using namespace lz::ops::norm_rms_residual;

int32_t Launch(const lz_kernel_args* args) {
  const View x(args->tensors[kInput]), residual(args->tensors[kResidual]), w(args->tensors[kWeight]);
  const View out(args->tensors[kOutput]), sum_out(args->tensors[kResidualOut]);
  const double eps = args->scalars[kEps].value.f, offset = args->scalars[kWeightOffset].value.f;
  const int64_t hidden = x.size(-1);
  for (int64_t row = 0; row < x.rows(); ++row) {
    double squares = 0;
    for (int64_t i = 0; i < hidden; ++i) {
      sum_out.SetRow(row, i, x.GetRow(row, i) + residual.GetRow(row, i));
      const double sum = sum_out.GetRow(row, i);  // rounded to the dtype
      squares += sum * sum;
    }
    const double scale = 1.0 / std::sqrt(squares / double(hidden) + eps);
    for (int64_t i = 0; i < hidden; ++i) {
      const double gain = (w.given() ? w.Get({i}) : 1.0) + offset;
      out.SetRow(row, i, sum_out.GetRow(row, i) * scale * gain);
    }
  }
  return 0;
}

constexpr std::array kFamily = {ReferenceKernel("ref.norm.rms.residual", &Launch)};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
