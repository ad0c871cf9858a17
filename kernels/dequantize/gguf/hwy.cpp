// GGUF blocks as floats, CPU SIMD: quantized values are widened to f32 lanes, scaled, stored. Those of 5 and 6 bits are
// first assembled as bytes.
//   data [n, row_bytes] u8, dense last axis     output [n, columns] f32|f16|bf16, dense last axis; nothing aliases
// Workspace: none. Deterministic, bitwise equal to the reference: multiplication and addition round separately. Source:
// own; block layouts in ops/dequantize/gguf.h.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/dequantize/gguf/hwy.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include <cstring>

#include "core/kernel.h"
#include "hwy/highway.h"
#include "kernels/launch.h"
#include "kernels/simd.h"
#include "kernels/spec.h"
#include "ops/dequantize/gguf.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE {
namespace {
using namespace lz::ops::dequantize_gguf;

HWY_INLINE float HalfAt(const uint8_t* p) {
  uint16_t bits;
  std::memcpy(&bits, p, 2);
  // Normal numbers and zero, which are nearly all: the exponent's bias changes from 15 to 127.
  const uint32_t exponent = bits >> 10 & 31;
  if (HWY_LIKELY(exponent != 0 && exponent != 31)) {
    return std::bit_cast<float>(uint32_t(bits & 0x8000) << 16 | ((uint32_t(bits & 0x7fff) << 13) + (112u << 23)));
  }
  return F16ToFloat(bits);
}

// At most 16 lanes, so that whole vectors fill half a block.
using Tag = hn::CappedTag<float, 16>;

template <class T>
void Q4Block(const uint8_t* weights, float d, float m, float zero_point, bool add, T* out) {
  const Tag tag;
  const hn::Rebind<int32_t, Tag> di;
  const hn::Rebind<uint8_t, Tag> du8;
  const auto scale = hn::Set(tag, d), minimum = hn::Set(tag, m), zero = hn::Set(tag, zero_point);
  const int64_t lanes = int64_t(hn::Lanes(tag));
  for (int64_t i = 0; i < 16; i += lanes) {
    const auto pair = hn::PromoteTo(di, hn::LoadU(du8, weights + i));
    const auto low = hn::ConvertTo(tag, hn::And(pair, hn::Set(di, 15)));
    const auto high = hn::ConvertTo(tag, hn::ShiftRight<4>(pair));
    auto a = hn::Mul(scale, hn::Sub(low, zero)), b = hn::Mul(scale, hn::Sub(high, zero));
    if (add) {
      a = hn::Add(a, minimum);
      b = hn::Add(b, minimum);
    }
    StoreF32(tag, a, out + i);
    StoreF32(tag, b, out + 16 + i);
  }
}

template <class T>
void Q8Block(const uint8_t* weights, float d, T* out) {
  const Tag tag;
  const hn::Rebind<int32_t, Tag> di;
  const hn::Rebind<int8_t, Tag> d8;
  const auto scale = hn::Set(tag, d);
  const int64_t lanes = int64_t(hn::Lanes(tag));
  const auto* values = reinterpret_cast<const int8_t*>(weights);
  for (int64_t i = 0; i < 32; i += lanes) {
    StoreF32(tag, hn::Mul(scale, hn::ConvertTo(tag, hn::PromoteTo(di, hn::LoadU(d8, values + i)))), out + i);
  }
}

// out[i] = scale * weights[i] - minimum for n values, a multiple of 16.
template <class T>
void Scale(const int8_t* weights, int64_t n, float scale, float minimum, T* out) {
  const Tag tag;
  const hn::Rebind<int32_t, Tag> di;
  const hn::Rebind<int8_t, Tag> d8;
  const auto s = hn::Set(tag, scale), m = hn::Set(tag, minimum);
  const int64_t lanes = int64_t(hn::Lanes(tag));
  for (int64_t i = 0; i < n; i += lanes) {
    const auto value = hn::ConvertTo(tag, hn::PromoteTo(di, hn::LoadU(d8, weights + i)));
    StoreF32(tag, hn::Sub(hn::Mul(s, value), m), out + i);
  }
}

// q5_0 and q5_1, whose m is added: `minimum` is -m.
template <class T>
void Q5Block(const uint8_t* bits, float d, float minimum, int zero_point, T* out) {
  uint32_t high;
  std::memcpy(&high, bits, 4);
  const uint8_t* packed = bits + 4;
  int8_t weights[32];
  for (int j = 0; j < 16; ++j) {
    weights[j] = int8_t(((packed[j] & 15) | (high >> j & 1) << 4) - uint32_t(zero_point));
    weights[j + 16] = int8_t((packed[j] >> 4 | (high >> (j + 16) & 1) << 4) - uint32_t(zero_point));
  }
  Scale(weights, 32, d, minimum, out);
}

// q4_k, and q5_k, which has high bits.
template <class T>
void KBlock(const uint8_t* block, const uint8_t* high, const uint8_t* packed, T* out) {
  const float d = HalfAt(block), m = HalfAt(block + 2);
  const uint8_t* q = block + 4;
  for (int j = 0; j < 8; ++j) {
    const int s = j < 4 ? q[j] & 63 : (q[j + 4] & 15) | q[j - 4] >> 6 << 4;
    const int t = j < 4 ? q[j + 4] & 63 : q[j + 4] >> 4 | q[j] >> 6 << 4;
    const uint8_t* from = packed + j / 2 * 32;
    const int shift = j % 2 * 4;
    int8_t weights[32];
    for (int i = 0; i < 32; ++i) weights[i] = int8_t(from[i] >> shift & 15);
    if (high) {
      for (int i = 0; i < 32; ++i) weights[i] = int8_t(weights[i] | (high[i] >> j & 1) << 4);
    }
    Scale(weights, 32, d * float(s), m * float(t), out + j * 32);
  }
}

template <class T>
void Q6Block(const uint8_t* block, T* out) {
  const float d = HalfAt(block + 208);
  for (int part = 0; part < 8; ++part) {  // parts of 32 values
    const int half = part / 4, c = part % 4;
    const uint8_t *low = block + half * 64 + c % 2 * 32, *high = block + 128 + half * 32;
    const int shift = c / 2 * 4;
    int8_t weights[32];
    for (int i = 0; i < 32; ++i) weights[i] = int8_t(((low[i] >> shift & 15) | (high[i] >> 2 * c & 3) << 4) - 32);
    for (int g = 0; g < 2; ++g) {
      const float s = d * float(int8_t(block[192 + part * 2 + g]));
      Scale(weights + 16 * g, 16, s, 0.0f, out + part * 32 + 16 * g);
    }
  }
}

template <class T>
void Block(const uint8_t* data, int64_t format, T* out) {
  switch (format) {
    case kQ4_0: return Q4Block(data + 2, HalfAt(data), 0.0f, 8.0f, false, out);
    case kQ4_1: return Q4Block(data + 4, HalfAt(data), HalfAt(data + 2), 0.0f, true, out);
    case kQ5_0: return Q5Block(data + 2, HalfAt(data), 0.0f, 16, out);
    case kQ5_1: return Q5Block(data + 4, HalfAt(data), -HalfAt(data + 2), 0, out);
    case kQ8_0: return Q8Block(data + 2, HalfAt(data), out);
    case kQ4_K: return KBlock(data, nullptr, data + 16, out);
    case kQ5_K: return KBlock(data, data + 16, data + 48, out);
    default: return Q6Block(data, out);
  }
}

template <class T>
void Row(const uint8_t* data, T* out, int64_t blocks, int64_t format) {
  const int64_t bytes = kBlockBytes[size_t(format)], values = kBlockColumns[size_t(format)];
  for (int64_t b = 0; b < blocks; ++b) Block(data + b * bytes, format, out + b * values);
}

template <class T>
int32_t Run(const lz_kernel_args* args) {
  const lz_tensor &data = args->tensors[kData], &output = args->tensors[kOutput];
  const int64_t columns = output.shape[1], format = args->scalars[kFormat].value.i;
  const uint8_t* in = Data<const uint8_t>(data);
  T* out = Data<T>(output);
  // 32k values take about 5 us on one core: less does not pay for waking another thread.
  ParallelFor(args, output.shape[0], 32768 / (columns + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      Row(in + r * data.strides[0], out + r * output.strides[0], columns / kBlockColumns[size_t(format)], format);
    }
  });
  return 0;
}

LZ_LAUNCH_BY_FLOAT(kOutput);

}  // namespace
}  // namespace lz::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lz {
namespace {
LZ_HWY_EXPORT(Launch);

constexpr std::array<std::string_view, 2> kAccepts = {"format", "dtype"};
constexpr std::array kFamily = {
    CpuSpec("hwy.dequantize.gguf", &LaunchBest, {.dtypes = Mask(DType::kU8), .accepts = kAccepts})};
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
#endif  // HWY_ONCE
