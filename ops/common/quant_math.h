// Arithmetic of quantized formats, value by value: scales of blocks, codes, values. Every float32 operation is separate
// from the next, as in the definitions. Sources: ops/quantize/scaled.h.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "core/view.h"
#include "ops/common/quant.h"
#include "ops/common/small_float.h"

namespace lz::ops {

inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

inline const SmallFloat& ElementOf(int64_t format) {
  if (format == kFP8E4M3 || format == kMXFP8E4M3) return kE4M3FN;
  return format == kFP8E5M2 || format == kMXFP8E5M2 ? kE5M2 : kE2M1FN;
}
inline float LargestOf(int64_t format) { return float(Decode(ElementOf(format), ElementOf(format).max)); }
struct IntRange {
  int low, high;
};
// The range of codes with zero points; without them the range is symmetric: -high to high.
inline IntRange RangeOf(int64_t format) {
  switch (format) {
    case kInt8: return {-128, 127};
    case kUInt8: return {0, 255};
    case kInt4: return {-8, 7};
    default: return {0, 15};
  }
}

// The stored scale of a block whose largest magnitude is `amax` (NaN: the block has NaN or infinity). `enc` is NVFP4's
// 1 / tensor scale.
inline float F32Scale(int64_t format, float amax) {
  if (IsInteger(format)) return std::fmax(amax / float(RangeOf(format).high), 0x1p-126f) + (amax - amax);
  return std::fmax(amax, 1e-4f) * (1.0f / LargestOf(format)) + (amax - amax);
}
inline uint8_t E8M0Scale(int64_t format, float amax, bool ceil) {
  if (std::isnan(amax)) return 255;
  const float largest = LargestOf(format);
  const float a = std::fmax(amax, format == kMXFP4 ? 6 * 0x1p-126f : 1e-4f);
  if (!ceil) return uint8_t(std::max(0, int(std::bit_cast<uint32_t>(a) >> 23) - std::ilogb(largest)));
  const uint32_t bits = std::bit_cast<uint32_t>(a * (1.0f / largest));
  return uint8_t(std::min(254u, (bits >> 23) + ((bits & 0x7fffff) != 0)));
}
inline uint8_t NVFP4Scale(float amax, float enc) {
  const float sixth = enc * (1.0f / 6);
  return Encode(kE4M3FN, amax * sixth, true);
}
// 1 / tensor scale from the tensor's largest finite magnitude.
inline float NVFP4Encoding(float amax) {
  return amax == 0 ? 1 : std::fmin(2688.0f / amax, std::numeric_limits<float>::max());
}
inline float NVFP4Reciprocal(float scale, float tensor_scale) {
  const float reciprocal = 1.0f / (scale * tensor_scale);
  return reciprocal > std::numeric_limits<float>::max() ? std::numeric_limits<float>::max() : reciprocal;  // NaN stays
}

// Rounds to nearest even, saturating; NaN becomes 0.
inline int IntCode(float quotient, int64_t zero_point, int low, int high) {
  if (std::isnan(quotient)) return 0;
  return int(std::clamp(std::nearbyint(double(quotient)) + double(zero_point), double(low), double(high)));
}

// Stores a packed value. The even value of a byte must be stored before the odd one.
inline void StoreCode(const View& values, int64_t offset_of_row, int64_t column, int64_t pack, int code) {
  uint8_t* at = values.data<uint8_t>() + offset_of_row + column / pack * values.stride(-1);
  if (pack == 1 || column % 2 == 0) {
    *at = uint8_t(pack == 1 ? code : code & 15);
  } else {
    *at = uint8_t((*at & 15) | code << 4);
  }
}
inline uint8_t LoadCode(const View& values, int64_t offset_of_row, int64_t column, int64_t pack) {
  const uint8_t byte = values.data<uint8_t>()[offset_of_row + column / pack * values.stride(-1)];
  return pack == 1 ? byte : column % 2 == 0 ? byte & 15 : byte >> 4;
}

// The number of a code, which is multiplied by the scale.
inline float CodeValue(int64_t format, uint8_t code, int64_t zero_point) {
  switch (format) {
    case kInt8: return float(int8_t(code) - zero_point);
    case kUInt8:
    case kUInt4: return float(code - zero_point);
    case kInt4: return float((code ^ 8) - 8 - zero_point);
    default: return float(Decode(ElementOf(format), code));
  }
}
inline float ScaleValue(const View& scale, int64_t offset) {
  return float(scale.dtype() == DType::kU8 ? DecodeE8M0(scale.data<uint8_t>()[offset]) : scale.Load(offset));
}

// The offset of the scale of the value at `index`, for scales that CheckScale accepts.
class ScaleIndex {
 public:
  ScaleIndex(const QuantShape& shape, const lz_tensor& scale, std::optional<int64_t> axis) : ndim_(shape.ndim) {
    const bool listed = axis && scale.ndim == 1 && shape.ndim > 1;
    for (int32_t i = 0; i < ndim_; ++i) {
      const int32_t of = listed ? (i == *axis ? 0 : -1) : scale.ndim == ndim_ ? i : -1;
      const int64_t count = of < 0 ? 1 : scale.shape[of];
      block_[i] = count > 0 ? std::max<int64_t>(1, shape.size[i] / count) : 1;
      stride_[i] = of < 0 || count == 1 ? 0 : scale.strides[of];
      count_[i] = count;
    }
  }
  int64_t Offset(const int64_t* index) const {
    int64_t offset = 0;
    for (int32_t i = 0; i < ndim_; ++i) offset += index[i] / block_[i] * stride_[i];
    return offset;
  }
  int64_t block(int32_t i) const { return block_[i]; }  // values along axis i that share a scale
  int64_t count(int32_t i) const { return count_[i]; }  // blocks along axis i

 private:
  int32_t ndim_;
  int64_t block_[8], stride_[8], count_[8];
};

// Calls f(index) for each index of the box that starts at `begin`, the last axis fastest.
template <class F>
void ForEachIndex(int32_t ndim, const int64_t* begin, const int64_t* size, F f) {
  int64_t index[8];
  for (int32_t i = 0; i < ndim; ++i) {
    if (size[i] == 0) return;
    index[i] = begin[i];
  }
  for (int32_t i = ndim; i >= 0;) {
    f(static_cast<const int64_t*>(index));
    for (i = ndim - 1; i >= 0; --i) {
      if (++index[i] < begin[i] + size[i]) break;
      index[i] = begin[i];
    }
    if (i < 0) return;
  }
}

}  // namespace lz::ops
