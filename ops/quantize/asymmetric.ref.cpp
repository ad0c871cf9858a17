// Reference of quantize.asymmetric: block by block in float32, as in the definition; any strides.
#include "ops/quantize/asymmetric.h"

#include "ops/common/quantize_reference.h"
#include "ops/common/reference.h"

namespace {
using namespace lz;
using namespace lz::ops;
using namespace lz::ops::quantize_asymmetric;

BlockScale ScaleOf(int64_t format, const BlockRange& range) {
  const auto [low, high] = RangeOf(format);
  if (std::isnan(range.low)) return {.scale = kNaN, .symmetric = false};
  const float span = range.high - range.low;
  const float scale = std::fmax(span / float(high - low), 0x1p-126f);
  const float lowest = range.low / scale;
  const double zero = std::clamp(double(low) - std::nearbyint(double(lowest)), double(low), double(high));
  return {.scale = scale, .zero_point = int64_t(zero), .symmetric = false};
}

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor &in = args->tensors[kInput], &values = args->tensors[kValues], &scale = args->tensors[kScale];
  const int64_t format = args->scalars[kDtype].value.i;
  const QuantShape shape = QuantShape::Of(in, 1);
  const ScaleIndex scales(shape, scale, AxisOf(args->scalars[kAxis]));
  const View x(in), codes(values), s(scale), z(args->tensors[kZeroPoint]);
  ForEachBlock(shape, scales, [&](const int64_t* begin, const int64_t* size) {
    const BlockScale b = ScaleOf(format, RangeOfBlock(x, in, begin, size));
    s.Store(scales.Offset(begin), b.scale);
    z.StoreInt(scales.Offset(begin), b.zero_point);
    StoreBlock(format, x, in, codes, values, begin, size, b);
  });
  return 0;
}

constexpr std::array kFamily = {ReferenceKernel("ref.quantize.asymmetric", &Launch)};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
