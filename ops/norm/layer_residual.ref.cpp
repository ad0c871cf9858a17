// Reference of norm.layer.residual: FP64, two passes, any strides, any float dtype.
#include "ops/norm/layer_residual.h"

#include "core/view.h"
#include "ops/common/reference.h"

namespace {
using namespace lz;
using namespace lz::ops::norm_layer_residual;

int32_t Launch(const lz_kernel_args* args) {
  const View a(args->tensors[kInput]), b(args->tensors[kResidual]), x(args->tensors[kResidualOut]),
      w(args->tensors[kWeight]), bias(args->tensors[kBias]);
  const View out(args->tensors[kOutput]);
  const double eps = args->scalars[kEps].value.f, offset = args->scalars[kWeightOffset].value.f;
  const int64_t hidden = x.size(-1);
  for (int64_t row = 0; row < x.rows(); ++row) {
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < hidden; ++i) x.SetRow(row, i, a.GetRow(row, i) + b.GetRow(row, i));
    for (int64_t i = 0; i < hidden; ++i) sum += x.GetRow(row, i);
    const double mean = sum / double(hidden);
    for (int64_t i = 0; i < hidden; ++i) squares += (x.GetRow(row, i) - mean) * (x.GetRow(row, i) - mean);
    const double scale = 1.0 / std::sqrt(squares / double(hidden) + eps);
    for (int64_t i = 0; i < hidden; ++i) {
      const double gain = (w.given() ? w.Get({i}) : 1.0) + offset, shift = bias.given() ? bias.Get({i}) : 0.0;
      out.SetRow(row, i, (x.GetRow(row, i) - mean) * scale * gain + shift);
    }
  }
  return 0;
}

constexpr std::array kFamily = {ReferenceKernel("ref.norm.layer.residual", &Launch)};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
