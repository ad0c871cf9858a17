// Reference of sampling.softmax: FP64 accumulation, any strides, any float dtype.
#include "ops/sampling/softmax.h"

#include <limits>

#include "core/view.h"
#include "ops/common/index.h"
#include "ops/common/reference.h"
#include "ops/common/sampling_math.h"

namespace {
using namespace lz;
using namespace lz::ops::sampling_softmax;

int32_t Launch(const lz_kernel_args* args) {
  const View x(args->tensors[kLogits]), out(args->tensors[kProbs]);
  const lz_tensor& rows = args->tensors[kRowTemperature];
  for (int64_t row = 0; row < x.rows(); ++row) {
    const double temperature =
        rows.ndim >= 0 ? View(rows).Load(ElementOffset(rows, row)) : args->scalars[kTemperature].value.f;
    if (!sampling::IsTemperature(temperature)) return LZ_LAUNCH_INVALID_DATA;
    double max = -std::numeric_limits<double>::infinity(), sum = 0;
    for (int64_t i = 0; i < x.size(-1); ++i) max = std::fmax(max, x.GetRow(row, i));
    for (int64_t i = 0; i < x.size(-1); ++i) sum += std::exp(sampling::Exponent(x.GetRow(row, i), max, temperature));
    for (int64_t i = 0; i < x.size(-1); ++i) {
      out.SetRow(row, i, std::exp(sampling::Exponent(x.GetRow(row, i), max, temperature)) / sum);
    }
  }
  return 0;
}

constexpr std::array kFamily = {ReferenceKernel("ref.sampling.softmax", &Launch)};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
