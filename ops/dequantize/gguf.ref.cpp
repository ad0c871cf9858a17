// Reference of dequantize.gguf: value by value in float32, as the definition has it; any strides.
#include "ops/dequantize/gguf.h"

#include "core/kernel.h"
#include "core/view.h"

namespace {
using namespace lz;
using namespace lz::ops::dequantize_gguf;

// Value `i` of the block that starts at byte `begin` of `row`.
float Value(const View& data, int64_t row, int64_t begin, int64_t i, int64_t format) {
  const auto byte = [&](int64_t at) { return uint8_t(data.GetInt({row, begin + at})); };
  const auto half = [&](int64_t at) { return F16ToFloat(uint16_t(byte(at) | byte(at + 1) << 8)); };
  const float d = half(0);
  if (format == kQ8_0) return d * float(int8_t(byte(2 + i)));
  const int64_t codes = format == kQ4_0 ? 2 : 4;
  const int code = byte(codes + i % 16) >> (i < 16 ? 0 : 4) & 15;
  if (format == kQ4_0) return d * float(code - 8);
  const float product = d * float(code);
  return product + half(2);
}

int32_t Launch(const lz_kernel_args* args) {
  const View data(args->tensors[kData]), out(args->tensors[kOutput]);
  const int64_t format = args->scalars[kFormat].value.i;
  for (int64_t row = 0; row < out.size(0); ++row) {
    for (int64_t c = 0; c < out.size(1); ++c) {
      const int64_t begin = c / kBlockColumns * kBlockBytes[size_t(format)];
      out.Set({row, c}, double(Value(data, row, begin, c % kBlockColumns, format)));
    }
  }
  return 0;
}

constexpr auto kFamily = std::to_array<KernelSpec>({
    {.id = "ref.dequantize.gguf",
     .operation = "dequantize.gguf",
     .dtypes = Mask(DType::kU8),
     .accepts = kAcceptsAll,
     .strides = Strides::kAny,
     .priority = 0,
     .deterministic = true,
     .reference = true,
     .launch = &Launch},
});
}  // namespace

LZ_KERNEL_FAMILY = kFamily;
