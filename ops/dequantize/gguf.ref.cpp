// Reference of dequantize.gguf: value by value in float32, as in the definition; any strides.
#include "ops/dequantize/gguf.h"

#include "core/view.h"
#include "ops/common/reference.h"

namespace {
using namespace lz;
using namespace lz::ops::dequantize_gguf;

int32_t Launch(const lz_kernel_args* args) {
  const View data(args->tensors[kData]), out(args->tensors[kOutput]);
  const int64_t format = args->scalars[kFormat].value.i;
  const int64_t columns = kBlockColumns[size_t(format)];
  for (int64_t row = 0; row < out.size(0); ++row) {
    for (int64_t c = 0; c < out.size(1); ++c) {
      const int64_t begin = c / columns * kBlockBytes[size_t(format)];
      const FileBlock block(format, [&](int64_t at) { return int(uint8_t(data.GetInt({row, begin + at}))); });
      out.Set({row, c}, double(Value<float>(format, block.At(c % columns))));
    }
  }
  return 0;
}

constexpr std::array kFamily = {ReferenceKernel("ref.dequantize.gguf", &Launch, Mask(DType::kU8))};
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
