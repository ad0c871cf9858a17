// Quantized values on CUDA, and the place of an element's scale. float32 arithmetic, each operation rounded, as
// ops/quantize/scaled.h defines it.
#pragma once

#include "core/tensor.h"
#include "kernels/cuda_types.h"
#include "ops/common/quant.h"

namespace lz {

// How a quotient becomes a quantized value, and how many are stored in a byte.
enum class CodeKind : uint8_t { kByte, kFP8E4M3, kFP8E5M2, kNibble, kE2M1 };
inline CodeKind KindOf(int64_t format) {
  switch (format) {
    case ops::kInt8:
    case ops::kUInt8: return CodeKind::kByte;
    case ops::kInt4:
    case ops::kUInt4: return CodeKind::kNibble;
    case ops::kFP8E4M3:
    case ops::kMXFP8E4M3: return CodeKind::kFP8E4M3;
    case ops::kFP8E5M2:
    case ops::kMXFP8E5M2: return CodeKind::kFP8E5M2;
    default: return CodeKind::kE2M1;
  }
}
template <CodeKind kKind>
inline constexpr bool kPacks = kKind >= CodeKind::kNibble;  // two values in a byte

// Integers: rounded quotients plus the zero point, clamped.
struct CodeRange {
  float low = 0, high = 0;
};
inline CodeRange RangeOf(int64_t format, bool zero_point) {
  switch (format) {
    case ops::kInt8: return {zero_point ? -128.0f : -127.0f, 127.0f};
    case ops::kUInt8: return {0.0f, 255.0f};
    case ops::kInt4: return {zero_point ? -8.0f : -7.0f, 7.0f};
    default: return {0.0f, 15.0f};
  }
}

// body(std::integral_constant<CodeKind>)
template <class Body>
int32_t WithKind(CodeKind kind, Body&& body) {
  switch (kind) {
    case CodeKind::kByte: return body(std::integral_constant<CodeKind, CodeKind::kByte>());
    case CodeKind::kFP8E4M3: return body(std::integral_constant<CodeKind, CodeKind::kFP8E4M3>());
    case CodeKind::kFP8E5M2: return body(std::integral_constant<CodeKind, CodeKind::kFP8E5M2>());
    case CodeKind::kNibble: return body(std::integral_constant<CodeKind, CodeKind::kNibble>());
    default: return body(std::integral_constant<CodeKind, CodeKind::kE2M1>());
  }
}

#ifdef __CUDACC__
// a / b of numbers that are not negative. A division of 64 bits takes as long as a load.
__device__ inline int64_t Quotient(int64_t a, int64_t b) {
  return uint64_t(a | b) >> 32 == 0 ? int64_t(uint32_t(a) / uint32_t(b)) : a / b;
}
#endif

// The element of a scale (or zero point) for row `row`, column `column` of values [..., k].
struct ScaleMap {
  const void* data = nullptr;
  DType type = DType::kF32;
  int32_t n = 0;                         // axes before the last along which scales differ, innermost first
  int64_t size[8], block[8], stride[8];  // of all axes before the last; of those up to the n-th
  int64_t last_block = 1, last_stride = 0;

  ScaleMap() = default;
  // `shape`: that of the values; `axis`: that of a one-dimensional scale, or -1.
  ScaleMap(const lz_tensor& scale, const ops::QuantShape& shape, int64_t axis) : data(Data<void>(scale)) {
    type = DTypeOf(scale) == DType::kU8 ? DType::kF8E8M0 : DTypeOf(scale);
    const bool one = NumElements(scale) == 1;
    for (int i = shape.ndim - 1, at = 0; i >= 0; --i) {
      const bool mine = axis >= 0 ? i == axis : !one && scale.ndim == shape.ndim && scale.shape[i] != 1;
      const int from = axis >= 0 ? 0 : i;
      const int64_t step = mine && !one ? scale.strides[from] : 0;
      const int64_t width = mine && scale.shape[from] > 0 ? shape.size[i] / scale.shape[from] : 1;
      if (i == shape.ndim - 1) {
        last_block = width > 0 ? width : 1;
        last_stride = step;
        continue;
      }
      size[at] = shape.size[i];
      block[at] = width > 0 ? width : 1;
      stride[at++] = step;
      if (step != 0) n = at;
    }
  }
  bool one() const { return n == 0 && last_stride == 0; }

#ifdef __CUDACC__
  __device__ int64_t Row(int64_t row) const {
    int64_t offset = 0;
    for (int i = 0; i < n; ++i) {
      const int64_t rest = Quotient(row, size[i]);
      offset += Quotient(row - rest * size[i], block[i]) * stride[i];
      row = rest;
    }
    return offset;
  }
  __device__ int64_t At(int64_t row_offset, int64_t column) const {
    return row_offset + (last_stride == 0 ? 0 : Quotient(column, last_block) * last_stride);
  }
#endif
};

#ifdef __CUDACC__
// Ties to even; NaN becomes 0.
__device__ inline uint8_t E2M1Code(float q) {
  const float a = fabsf(q);
  const int code = (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5.0f);
  return uint8_t(code | (isnan(q) ? 0u : __float_as_uint(q) >> 31 << 3));
}
__device__ inline float E2M1Value(int code) {
  const int e = code >> 1 & 3, m = code & 1;
  const float magnitude = e == 0 ? 0.5f * float(m) : (1.0f + 0.5f * float(m)) * float(1 << (e - 1));
  return code & 8 ? -magnitude : magnitude;
}
// A zero point above 2^24 is exact in FP64.
__device__ inline uint8_t IntegerCode(float q, CodeRange range, int32_t zero_point) {
  if (isnan(q)) return 0;
  const float rounded = rintf(q);
  if (zero_point == 0) return uint8_t(int(fminf(fmaxf(rounded, range.low), range.high)));
  const double sum = double(rounded) + double(zero_point);
  return uint8_t(int(fmin(fmax(sum, double(range.low)), double(range.high))));
}
template <CodeKind kKind>
__device__ uint8_t CodeOf(float q, CodeRange range, int32_t zero_point) {
  if constexpr (kKind == CodeKind::kFP8E4M3) return __nv_cvt_float_to_fp8(q, __NV_SATFINITE, __NV_E4M3);
  if constexpr (kKind == CodeKind::kFP8E5M2) return __nv_cvt_float_to_fp8(q, __NV_SATFINITE, __NV_E5M2);
  if constexpr (kKind == CodeKind::kE2M1) return E2M1Code(q);
  return IntegerCode(q, range, zero_point);
}

// kN values that begin at element i of a row; kWide: their address is a multiple of the vector's size.
template <class T, int kN, bool kWide>
__device__ Vector<T, kN> LoadVector(const T* row, int64_t i) {
  if constexpr (kWide) {
    return *reinterpret_cast<const Vector<T, kN>*>(row + i);
  } else {
    Vector<T, kN> v;
#pragma unroll
    for (int j = 0; j < kN; ++j) v.v[j] = row[i + j];
    return v;
  }
}
// kN quantized values, packed if the kind is.
template <CodeKind kKind, int kN, bool kWide>
__device__ void StoreCodes(uint8_t* row, int64_t i, const uint8_t* codes) {
  constexpr int kPack = kPacks<kKind> ? 2 : 1, kBytes = kN / kPack;
  Vector<uint8_t, kBytes> bytes;
#pragma unroll
  for (int j = 0; j < kBytes; ++j) {
    bytes.v[j] = kPack == 1 ? codes[j] : uint8_t((codes[kPack * j] & 15) | codes[kPack * j + kPack - 1] << 4);
  }
  if constexpr (kWide) {
    *reinterpret_cast<Vector<uint8_t, kBytes>*>(row + i / kPack) = bytes;
  } else {
#pragma unroll
    for (int j = 0; j < kBytes; ++j) row[i / kPack + j] = bytes.v[j];
  }
}
#endif  // __CUDACC__

}  // namespace lz
