// Reference of quantize.swizzle: byte by byte; any strides.
#include "ops/quantize/swizzle.h"

#include <cstring>

#include "core/kernel.h"
#include "core/view.h"

namespace {
using namespace lz;
using namespace lz::ops;
using namespace lz::ops::quantize_swizzle;

int32_t Launch(const lz_kernel_args* args) {
  const View scale(args->tensors[kScale]), out(args->tensors[kOutput]);
  const int64_t rows = scale.size(-2), columns = scale.size(-1), size = out.size(-1);
  if (out.numel() == 0) return 0;
  std::memset(out.data<uint8_t>(), 0, size_t(out.numel()));  // outputs are dense
  for (int64_t row = 0; row < scale.rows(); ++row) {
    uint8_t* to = out.data<uint8_t>() + row / rows * size;
    const uint8_t* from = scale.data<const uint8_t>() + scale.RowOffset(row);
    for (int64_t c = 0; c < columns; ++c) to[SwizzledOffset(row % rows, c, columns)] = from[c * scale.stride(-1)];
  }
  return 0;
}

constexpr auto kFamily = std::to_array<KernelSpec>({
    {.id = "ref.quantize.swizzle",
     .operation = "quantize.swizzle",
     .dtypes = kScaleBytes,
     .accepts = kAcceptsAll,
     .strides = Strides::kAny,
     .priority = 0,
     .deterministic = true,
     .reference = true,
     .launch = &Launch},
});
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
