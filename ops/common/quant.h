// Quantized formats in contracts: names, packing, and which elements share a scale.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <string>

#include "core/contract.h"

namespace lz::ops {

enum QuantFormat : int64_t {
  kInt8,
  kUInt8,
  kInt4,
  kUInt4,
  kFP8E4M3,
  kFP8E5M2,
  kMXFP8E4M3,
  kMXFP8E5M2,
  kMXFP4,
  kNVFP4,
  kQuantFormats
};
inline constexpr std::string_view kQuantNames =
    "int8|uint8|int4|uint4|fp8_e4m3|fp8_e5m2|mxfp8_e4m3|mxfp8_e5m2|mxfp4|nvfp4";
inline constexpr std::string_view kQuantValueDTypes =
    "int8|uint8|uint8|uint8|float8_e4m3fn|float8_e5m2|float8_e4m3fn|float8_e5m2|uint8|uint8";
inline constexpr std::string_view kQuantScaleDTypes =
    "float32|float32|float32|float32|float32|float32|float8_e8m0fnu|float8_e8m0fnu|float8_e8m0fnu|float8_e4m3fn";
// The meaning of each format, for the docs of parameters.
inline constexpr std::string_view kQuantDoc =
    "int8 to +-127, int4 to +-7, uint8 and uint4 with zero points; FP8; MXFP8 and MXFP4 (groups of 32, e8m0 scales); "
    "NVFP4 (groups of 16, e4m3 scales under one of the tensor)";
inline constexpr std::string_view kQuantPacking =
    "two 4-bit values are stored in a byte, the even element in the low half, float4 as its code, int4 in two's "
    "complement";

struct QuantInfo {
  DType dtype;    // dtype of the tensor that holds values
  int64_t pack;   // values per element
  int64_t group;  // fixed by the format, or 0
  DTypeMask scales;
};
inline constexpr DTypeMask kE8M0Scales = Mask(DType::kF8E8M0, DType::kU8), kE4M3Scales = Mask(DType::kF8E4M3);
inline constexpr DTypeMask kScaleDTypes = kF32F16BF16 | kE8M0Scales | kE4M3Scales;
inline constexpr DTypeMask kValueDTypes = Mask(DType::kI8, DType::kU8, DType::kF8E4M3, DType::kF8E5M2);
inline constexpr std::array<QuantInfo, kQuantFormats> kQuantInfo = {{
    {DType::kI8, 1, 0, kF32F16BF16},
    {DType::kU8, 1, 0, kF32F16BF16},
    {DType::kU8, 2, 0, kF32F16BF16},
    {DType::kU8, 2, 0, kF32F16BF16},
    {DType::kF8E4M3, 1, 0, kF32F16BF16},
    {DType::kF8E5M2, 1, 0, kF32F16BF16},
    {DType::kF8E4M3, 1, 32, kE8M0Scales},
    {DType::kF8E5M2, 1, 32, kE8M0Scales},
    {DType::kU8, 2, 32, kE8M0Scales},
    {DType::kU8, 2, 16, kE4M3Scales},
}};
constexpr bool IsUnsigned(int64_t format) { return format == kUInt8 || format == kUInt4; }
constexpr bool IsInteger(int64_t format) { return format <= kUInt4; }

inline Status BadQuant(std::string_view field, std::string wanted, std::string got, std::string fix) {
  return Status(
      StatusCode::kInvalidRequest,
      {.field = std::string(field), .wanted = std::move(wanted), .got = std::move(got), .fix = std::move(fix)});
}
inline std::string SizesText(const int64_t* sizes, int32_t n) {
  std::string text = "[";
  for (int32_t i = 0; i < n; ++i) text += (i ? ", " : "") + std::to_string(sizes[i]);
  return text + "]";
}

// The shape of the quantized tensor, in values (not in packed bytes).
struct QuantShape {
  int32_t ndim;
  int64_t size[8];
  static QuantShape Of(const lz_tensor& t, int64_t pack) {
    QuantShape s{t.ndim, {}};
    for (int32_t i = 0; i < t.ndim; ++i) s.size[i] = t.shape[i] * (i + 1 == t.ndim ? pack : 1);
    return s;
  }
};

// Checks that `scale` fits values of `shape`. It has one element; or the same rank, each axis dividing the values' (0
// or 1 where they have none: other divisors of 0 would make empty blocks); or, with `axis`, one element per index of
// that axis.
inline Status CheckScale(const QuantShape& shape, const lz_tensor& scale, std::string_view field,
                         std::optional<int64_t> axis, int64_t group) {
  bool one = true, fits = scale.ndim == shape.ndim;
  for (int32_t i = 0; i < scale.ndim; ++i) one &= scale.shape[i] == 1;
  for (int32_t i = 0; fits && i < scale.ndim; ++i) {
    const int64_t n = shape.size[i], s = scale.shape[i];
    fits = s == n || s == 1 || (s > 0 && n > 0 && n % s == 0);
    if (group > 0) fits &= i + 1 == scale.ndim ? s * group == n : s == n;
  }
  if (axis && (group > 0 || scale.ndim != 1)) {
    return BadQuant("axis", group > 0 ? "none where groups share scales" : "none unless the scale has one dimension",
                    std::to_string(*axis), "leave it out: the scale's shape decides which values share it");
  }
  if (axis) fits = scale.shape[0] == shape.size[*axis];
  if (fits || (one && group == 0 && !axis)) return {};
  const std::string of = SizesText(shape.size, shape.ndim);
  const bool empty = std::find(shape.size, shape.size + shape.ndim, 0) != shape.size + shape.ndim;
  return BadQuant(
      field,
      group > 0 ? "one scale for each " + std::to_string(group) + " values of the last axis of " + of
      : axis ? "[" + std::to_string(shape.size[*axis]) + "], one scale for each index of axis " + std::to_string(*axis)
             : "one element, or axes that divide those of " + of + (empty ? ", 0 or 1 for the empty one" : ""),
      SizesText(scale.shape, scale.ndim), axis || scale.ndim != 1 ? "" : "with a one-dimensional scale, pass axis=");
}

inline Status CheckPacking(const QuantShape& shape, int64_t pack) {
  const int64_t k = shape.size[shape.ndim - 1];
  if (k % pack == 0) return {};
  return BadQuant("input", "an even last axis: two values make a byte", std::to_string(k), "pad it");
}

// Decides which values share a scale that is computed; `fixed` is the format's own group size or 0.
inline Status CheckGroups(const QuantShape& shape, const lz_scalar& axis, int64_t given, int64_t rows, int64_t fixed) {
  if (fixed > 0 && given != 0 && given != fixed) {
    return BadQuant("group_size", std::to_string(fixed) + ", which the format fixes", std::to_string(given),
                    "leave it out");
  }
  const int64_t group = fixed > 0 ? fixed : given, k = shape.size[shape.ndim - 1];
  if (axis.given && group != 0) {
    return BadQuant("axis", "none where groups share scales", std::to_string(axis.value.i),
                    "leave out axis or group_size");
  }
  if (group < 0 || (group > 0 && k % group != 0)) {
    return BadQuant("group_size", "a divisor of the last axis, " + std::to_string(k), std::to_string(group),
                    "pad the input, or choose another");
  }
  if (rows == 1) return {};
  if (rows < 1 || group == 0 || fixed > 0 || shape.ndim < 2 || shape.size[shape.ndim - 2] % rows != 0) {
    return BadQuant("block_rows", "with group_size, a divisor of the axis before the last", std::to_string(rows),
                    "pad the input, or choose another");
  }
  return {};
}

// Makes a scalar `axis` of tensors of rank `ndim` non-negative, in place.
inline Status CheckAxis(lz_scalar& axis, int32_t ndim) {
  if (!axis.given) return {};
  if (axis.value.i < -ndim || axis.value.i >= ndim) {
    return BadQuant("axis", "-" + std::to_string(ndim) + " to " + std::to_string(ndim - 1),
                    std::to_string(axis.value.i), "");
  }
  if (axis.value.i < 0) axis.value.i += ndim;
  return {};
}
inline std::optional<int64_t> AxisOf(const lz_scalar& axis) {
  return axis.given ? std::optional(axis.value.i) : std::nullopt;
}

// Only integers have zero points, one per scale; unsigned formats require them.
inline Status CheckZeroPoint(int64_t format, const lz_tensor& scale, const lz_tensor& zero_point,
                             std::string_view field) {
  if (zero_point.ndim < 0) {
    if (!IsUnsigned(format)) return {};
    return BadQuant(field, "zero points for an unsigned format", "none",
                    "pass them, or use int8 or int4; quantize_asymmetric computes them");
  }
  const std::string got = SizesText(zero_point.shape, zero_point.ndim);
  if (!IsInteger(format)) return BadQuant(field, "none for a float format", got, "leave it out");
  bool same = zero_point.ndim == scale.ndim;
  for (int32_t i = 0; same && i < scale.ndim; ++i) same = zero_point.shape[i] == scale.shape[i];
  if (same) return {};
  return BadQuant(field, "the shape of the scales, " + SizesText(scale.shape, std::max(scale.ndim, 0)), got, "");
}

// NVFP4's second scale: one float32 for the tensor, or one per row.
inline Status CheckTensorScale(int64_t format, const QuantShape& shape, const lz_tensor& scale,
                               std::string_view field) {
  if (format != kNVFP4) {
    if (scale.ndim < 0) return {};
    return BadQuant(field, "only nvfp4 has one", "a tensor", "leave it out");
  }
  if (scale.ndim < 0) {
    return BadQuant(field, "the tensor's float32 scale for nvfp4", "none",
                    "pass it; quantize_nvfp4 computes it from the values");
  }
  bool one = true, rows = scale.ndim == shape.ndim;
  for (int32_t i = 0; i < scale.ndim; ++i) {
    one &= scale.shape[i] == 1;
    rows = rows && scale.shape[i] == (i + 1 == scale.ndim ? 1 : shape.size[i]);
  }
  if (one || rows) return {};
  return BadQuant(field, "one element, or one for each row of " + SizesText(shape.size, shape.ndim),
                  SizesText(scale.shape, scale.ndim), "");
}

// Checks that the dtype of stored values is the format's.
inline Status CheckValues(int64_t format, const lz_tensor& values, std::string_view field) {
  const DType want = kQuantInfo[size_t(format)].dtype;
  if (DTypeOf(values) == want) return {};
  return BadQuant(field, std::string(Info(want).name) + " for " + std::string(ChoiceName(kQuantNames, format)),
                  std::string(Info(DTypeOf(values)).name),
                  "check the format, or view the tensor's bytes as that dtype");
}
inline Status CheckScaleDType(int64_t format, const lz_tensor& scale, std::string_view field) {
  if (kQuantInfo[size_t(format)].scales >> int(DTypeOf(scale)) & 1) return {};
  const bool e8m0 = kQuantInfo[size_t(format)].scales == kE8M0Scales;
  return BadQuant(field,
                  std::string(e8m0               ? "float8_e8m0fnu or its bytes as uint8"
                              : format == kNVFP4 ? "float8_e4m3fn"
                                                 : "float32, float16 or bfloat16") +
                      " for " + std::string(ChoiceName(kQuantNames, format)),
                  std::string(Info(DTypeOf(scale)).name), "convert the scales");
}

}  // namespace lz::ops
