// Quantizes a tensor block by block, for the references of quantize, quantize.asymmetric and quantize.nvfp4.
#pragma once

#include "ops/common/quant_math.h"

namespace lz::ops {

// Offset of a row-major-indexed element; a tensor of one element serves every index.
inline int64_t OffsetOf(const lz_tensor& t, const int64_t* index) {
  int64_t offset = 0;
  for (int32_t i = 0; i < t.ndim; ++i) offset += t.shape[i] == 1 ? 0 : index[i] * t.strides[i];
  return offset;
}
inline int64_t RowStart(const lz_tensor& t, const int64_t* index) {
  int64_t offset = 0;
  for (int32_t i = 0; i + 1 < t.ndim; ++i) offset += index[i] * t.strides[i];
  return offset;
}

struct BlockRange {
  float low = 0, high = 0;  // 0 included; both NaN if a value is NaN or infinite
  float amax() const { return std::fmax(-low, high) + (high - high); }
};
inline BlockRange RangeOfBlock(const View& input, const lz_tensor& t, const int64_t* begin, const int64_t* size) {
  BlockRange r;
  ForEachIndex(t.ndim, begin, size, [&](const int64_t* index) {
    const float x = float(input.Load(OffsetOf(t, index)));
    if (!std::isfinite(x)) r.low = r.high = kNaN;
    if (std::isnan(r.low)) return;
    r.low = std::fmin(r.low, x);
    r.high = std::fmax(r.high, x);
  });
  return r;
}

// Calls f(first index of the block, its sizes, index of its scale) for each block of `shape`.
template <class F>
void ForEachBlock(const QuantShape& shape, const ScaleIndex& scales, F f) {
  int64_t count[8], zero[8] = {}, begin[8], size[8];
  for (int32_t i = 0; i < shape.ndim; ++i) count[i] = scales.count(i);
  ForEachIndex(shape.ndim, zero, count, [&](const int64_t* at) {
    for (int32_t i = 0; i < shape.ndim; ++i) {
      begin[i] = at[i] * scales.block(i);
      size[i] = std::min(scales.block(i), shape.size[i] - begin[i]);
    }
    f(static_cast<const int64_t*>(begin), static_cast<const int64_t*>(size));
  });
}

struct BlockScale {
  float scale = 1;         // as stored
  float tensor_scale = 1;  // nvfp4
  int64_t zero_point = 0;
  bool symmetric = true;
};
inline int CodeOf(int64_t format, float x, const BlockScale& b) {
  if (IsInteger(format)) {
    const IntRange range = RangeOf(format);
    return IntCode(x / b.scale, b.zero_point, b.symmetric ? -range.high : range.low, range.high);
  }
  const float q = format == kNVFP4 ? x * NVFP4Reciprocal(b.scale, b.tensor_scale) : x / b.scale;
  return Encode(ElementOf(format), q, true);
}
inline void StoreBlock(int64_t format, const View& input, const lz_tensor& in, const View& values, const lz_tensor& out,
                       const int64_t* begin, const int64_t* size, const BlockScale& scale) {
  const int64_t pack = kQuantInfo[size_t(format)].pack;
  ForEachIndex(in.ndim, begin, size, [&](const int64_t* index) {
    const float x = float(input.Load(OffsetOf(in, index)));
    StoreCode(values, RowStart(out, index), index[in.ndim - 1], pack, CodeOf(format, x, scale));
  });
}

}  // namespace lz::ops
