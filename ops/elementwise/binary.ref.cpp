// Reference of elementwise.binary: FP64, any strides, any float dtypes; output may alias input.
#include "ops/elementwise/binary.h"

#include "core/view.h"
#include "ops/common/reference.h"

namespace {
using namespace lz;
using namespace lz::ops::elementwise_binary;

double Compute(int64_t function, double x, double y) {
  switch (function) {
    case kAdd: return x + y;
    case kSub: return x - y;
    case kMul: return x * y;
    case kDiv: return x / y;
    case kMaximum: return x > y || std::isnan(x) ? x : y;
    default: return x < y || std::isnan(x) ? x : y;
  }
}

// Offset in `t` of the element at the row-major index `flat` of `shape`; axes of size 1 repeat.
int64_t BroadcastOffset(const lz_tensor& t, const lz_tensor& shape, int64_t flat) {
  int64_t offset = 0;
  for (int i = 1; i <= shape.ndim; ++i) {
    const int64_t size = shape.shape[shape.ndim - i], index = flat % size;
    if (i <= t.ndim && t.shape[t.ndim - i] != 1) offset += index * t.strides[t.ndim - i];
    flat /= size;
  }
  return offset;
}

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor &shape = args->tensors[kInput], &other = args->tensors[kOther], &output = args->tensors[kOutput];
  const View x(shape), y(other), out(output);
  const int64_t function = args->scalars[kFunction].value.i;
  const double scale = args->scalars[kScale].value.f;
  for (int64_t i = 0; i < x.numel(); ++i) {
    const double a = x.Load(BroadcastOffset(shape, shape, i)), b = y.Load(BroadcastOffset(other, shape, i));
    out.Store(BroadcastOffset(output, shape, i), Compute(function, a, scale * b));
  }
  return 0;
}

constexpr std::array kFamily = {ReferenceKernel("ref.elementwise.binary", &Launch)};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
