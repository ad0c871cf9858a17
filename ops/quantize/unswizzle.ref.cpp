// Reference of quantize.unswizzle: byte by byte; any strides.
#include "ops/quantize/unswizzle.h"

#include "core/view.h"
#include "ops/common/reference.h"

namespace {
using namespace lz;
using namespace lz::ops;
using namespace lz::ops::quantize_unswizzle;

int32_t Launch(const lz_kernel_args* args) {
  const View scale(args->tensors[kScale]), out(args->tensors[kOutput]);
  const int64_t rows = out.size(-2), columns = out.size(-1);
  for (int64_t row = 0; row < out.rows(); ++row) {
    if (columns == 0) break;
    // The input's last axis has all of one matrix.
    const uint8_t* from = scale.data<const uint8_t>() + scale.RowOffset(row / rows);
    uint8_t* to = out.data<uint8_t>() + out.RowOffset(row);
    for (int64_t c = 0; c < columns; ++c) {
      to[c * out.stride(-1)] = from[SwizzledOffset(row % rows, c, columns) * scale.stride(-1)];
    }
  }
  return 0;
}

constexpr std::array kFamily = {ReferenceKernel("ref.quantize.unswizzle", &Launch, kScaleBytes)};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
