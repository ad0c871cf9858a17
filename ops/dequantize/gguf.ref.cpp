// Reference of dequantize.gguf: value by value in float32, as the definition has it; any strides.
#include "ops/dequantize/gguf.h"

#include "core/kernel.h"
#include "core/view.h"

namespace {
using namespace lz;
using namespace lz::ops::dequantize_gguf;

// One block: its bytes, wherever they lie.
struct Block {
  const View& data;
  int64_t row, begin;
  int Byte(int64_t at) const { return uint8_t(data.GetInt({row, begin + at})); }
  float Half(int64_t at) const { return F16ToFloat(uint16_t(Byte(at) | Byte(at + 1) << 8)); }
  int Nibble(int64_t at, bool high) const { return Byte(at) >> (high ? 4 : 0) & 15; }
};

// Formats of 32 values: value `i`.
float SmallValue(const Block& b, int64_t i, int64_t format) {
  const float d = b.Half(0);
  if (format == kQ8_0) return d * float(int8_t(b.Byte(2 + i)));
  const bool five = format == kQ5_0 || format == kQ5_1, minimum = format == kQ4_1 || format == kQ5_1;
  const int64_t bits = minimum ? 4 : 2, codes = five ? bits + 4 : bits;
  int code = b.Nibble(codes + i % 16, i >= 16);
  if (five) code |= (b.Byte(bits + i / 8) >> i % 8 & 1) << 4;
  if (!minimum) return d * float(code - (five ? 16 : 8));
  const float product = d * float(code);
  return product + b.Half(2);
}

// q4_k and q5_k: value `i` of 256.
float KValue(const Block& b, int64_t i, int64_t format) {
  const int64_t j = i / 32;  // of the scales in bytes 4 to 15
  const int s = j < 4 ? b.Byte(4 + j) & 63 : (b.Byte(8 + j) & 15) | b.Byte(j) >> 6 << 4;
  const int t = j < 4 ? b.Byte(8 + j) & 63 : b.Byte(8 + j) >> 4 | b.Byte(4 + j) >> 6 << 4;
  int code = b.Nibble((format == kQ5_K ? 48 : 16) + i / 64 * 32 + i % 32, i % 64 >= 32);
  if (format == kQ5_K) code |= (b.Byte(16 + i % 32) >> j & 1) << 4;
  const float scale = b.Half(0) * float(s), minimum = b.Half(2) * float(t);
  const float product = scale * float(code);
  return product - minimum;
}

float Q6Value(const Block& b, int64_t i) {
  const int64_t half = i / 128, c = i % 128 / 32, j = i % 32;
  const int low = b.Nibble(half * 64 + c % 2 * 32 + j, c >= 2);
  const int code = low | (b.Byte(128 + half * 32 + j) >> 2 * c & 3) << 4;
  const float scale = b.Half(208) * float(int8_t(b.Byte(192 + i / 16)));
  return scale * float(code - 32);
}

float Value(const Block& b, int64_t i, int64_t format) {
  if (format < kQ4_K) return SmallValue(b, i, format);
  return format == kQ6_K ? Q6Value(b, i) : KValue(b, i, format);
}

int32_t Launch(const lz_kernel_args* args) {
  const View data(args->tensors[kData]), out(args->tensors[kOutput]);
  const int64_t format = args->scalars[kFormat].value.i;
  const int64_t columns = kBlockColumns[size_t(format)];
  for (int64_t row = 0; row < out.size(0); ++row) {
    for (int64_t c = 0; c < out.size(1); ++c) {
      const Block block = {data, row, c / columns * kBlockBytes[size_t(format)]};
      out.Set({row, c}, double(Value(block, c % columns, format)));
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
