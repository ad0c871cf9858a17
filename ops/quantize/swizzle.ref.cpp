// Reference of quantize.swizzle: byte by byte; any strides.
#include "ops/quantize/swizzle.h"

#include "core/view.h"
#include "ops/common/reference.h"

namespace {
using namespace lz;
using namespace lz::ops;
using namespace lz::ops::quantize_swizzle;

int32_t Launch(const lz_kernel_args* args) {
  const View scale(args->tensors[kScale]), out(args->tensors[kOutput]);
  const int64_t rows = scale.size(-2), columns = scale.size(-1), size = out.size(-1);
  if (out.numel() == 0) return 0;
  const int64_t step = out.stride(-1);
  for (int64_t matrix = 0; matrix < out.rows(); ++matrix) {
    uint8_t* to = out.data<uint8_t>() + out.RowOffset(matrix);
    for (int64_t i = 0; i < size; ++i) to[i * step] = 0;
  }
  for (int64_t row = 0; row < scale.rows(); ++row) {
    uint8_t* to = out.data<uint8_t>() + out.RowOffset(row / rows);
    const uint8_t* from = scale.data<const uint8_t>() + scale.RowOffset(row);
    for (int64_t c = 0; c < columns; ++c) {
      to[SwizzledOffset(row % rows, c, columns) * step] = from[c * scale.stride(-1)];
    }
  }
  return 0;
}

constexpr std::array kFamily = {ReferenceKernel("ref.quantize.swizzle", &Launch, kScaleBytes)};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
