// Reference of quantize: block by block in float32, as in the definition; any strides.
#include "ops/quantize/scaled.h"

#include "ops/common/quantize_reference.h"
#include "ops/common/reference.h"

namespace {
using namespace lz;
using namespace lz::ops;
using namespace lz::ops::quantize_scaled;

// Computes the scale of a block and stores it; returns the stored value.
float MakeScale(int64_t format, float amax, float tensor_scale, bool ceil, const View& out, int64_t at) {
  if (kQuantInfo[size_t(format)].scales == kE8M0Scales) {
    out.data<uint8_t>()[at] = E8M0Scale(format, amax, ceil);
  } else if (format == kNVFP4) {
    out.data<uint8_t>()[at] = NVFP4Scale(amax, 1.0f / tensor_scale);
  } else {
    out.data<float>()[at] = F32Scale(format, amax);
  }
  return ScaleValue(out, at);
}

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor &in = args->tensors[kInput], &values = args->tensors[kValues];
  const bool given = args->tensors[kScale].ndim >= 0;
  const lz_tensor& scale = args->tensors[given ? kScale : kScaleOut];
  const lz_tensor &zero = args->tensors[kZeroPoint], &tensor_scale = args->tensors[kTensorScale];
  const int64_t format = args->scalars[kDtype].value.i;
  const std::optional<int64_t> axis = AxisOf(args->scalars[kAxis]);
  const QuantShape shape = QuantShape::Of(in, 1);
  const ScaleIndex scales(shape, scale, axis), zeros(shape, zero, axis);
  const View x(in), codes(values), s(scale), z(zero), ts(tensor_scale);
  ForEachBlock(shape, scales, [&](const int64_t* begin, const int64_t* size) {
    BlockScale b{.symmetric = !z.given()};
    const int64_t at = scales.Offset(begin);
    if (z.given()) b.zero_point = z.LoadInt(zeros.Offset(begin));
    if (ts.given()) b.tensor_scale = float(ts.Load(OffsetOf(tensor_scale, begin)));
    b.scale = given ? ScaleValue(s, at)
                    : MakeScale(format, RangeOfBlock(x, in, begin, size).amax(), b.tensor_scale,
                                args->scalars[kScaleRule].value.i == 0, s, at);
    StoreBlock(format, x, in, codes, values, begin, size, b);
  });
  return 0;
}

constexpr std::array kFamily = {ReferenceKernel("ref.quantize", &Launch)};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
