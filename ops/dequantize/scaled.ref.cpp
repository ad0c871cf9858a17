// Reference of dequantize: value by value in float32, as in the definition; any strides.
#include "ops/dequantize/scaled.h"

#include "ops/common/quantize_reference.h"
#include "ops/common/reference.h"

namespace {
using namespace lz;
using namespace lz::ops;
using namespace lz::ops::dequantize_scaled;

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor &values = args->tensors[kValues], &scale = args->tensors[kScale];
  const lz_tensor &zero = args->tensors[kZeroPoint], &tensor_scale = args->tensors[kTensorScale];
  const int64_t format = args->scalars[kFormat].value.i, pack = kQuantInfo[size_t(format)].pack;
  const std::optional<int64_t> axis = AxisOf(args->scalars[kAxis]);
  const QuantShape shape = QuantShape::Of(values, pack);
  const ScaleIndex scales(shape, scale, axis), zeros(shape, zero, axis);
  const View codes(values), s(scale), z(zero), ts(tensor_scale), out(args->tensors[kOutput]);
  const int64_t begin[8] = {};
  ForEachIndex(shape.ndim, begin, shape.size, [&](const int64_t* index) {
    const uint8_t code = LoadCode(codes, RowStart(values, index), index[shape.ndim - 1], pack);
    const int64_t zero_point = z.given() ? z.LoadInt(zeros.Offset(index)) : 0;
    float v = CodeValue(format, code, zero_point) * ScaleValue(s, scales.Offset(index));
    if (ts.given()) v = v * float(ts.Load(OffsetOf(tensor_scale, index)));
    out.Store(OffsetOf(args->tensors[kOutput], index), v);
  });
  return 0;
}

constexpr std::array kFamily = {ReferenceKernel("ref.dequantize", &Launch, kValueDTypes)};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
