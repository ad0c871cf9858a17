// Element types: one table defines their names, sizes, DLPack codes and masks.
//   lz::DTypeOf(tensor) == lz::DType::kBF16;  lz::Info(lz::DType::kF32).name == "float32"
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "layerzero/c_abi.h"

namespace lz {

// The numbers are internal; outside the process dtypes are identified by name.
enum class DType : uint8_t {
  kUnknown,
  kF64,
  kF32,
  kF16,
  kBF16,
  kF8E4M3,
  kF8E5M2,
  kF8E8M0,
  kF4E2M1x2,
  kI64,
  kI32,
  kI16,
  kI8,
  kU8,
  kBool,
  kCount
};

struct DTypeInfo {
  std::string_view name;        // torch's spelling without "torch."
  std::string_view short_name;  // the spelling in case files
  uint8_t dlpack_code;
  uint8_t bits;   // bits of one element (of one lane)
  uint8_t lanes;  // 2 for packed 4-bit pairs
};

inline constexpr std::array<DTypeInfo, size_t(DType::kCount)> kDTypes = {{
    {"unknown", "unknown", 255, 0, 1},
    {"float64", "f64", 2, 64, 1},
    {"float32", "f32", 2, 32, 1},
    {"float16", "f16", 2, 16, 1},
    {"bfloat16", "bf16", 4, 16, 1},
    {"float8_e4m3fn", "f8e4m3", 10, 8, 1},
    {"float8_e5m2", "f8e5m2", 12, 8, 1},
    {"float8_e8m0fnu", "f8e8m0", 14, 8, 1},
    {"float4_e2m1fn_x2", "f4e2m1x2", 17, 4, 2},
    {"int64", "i64", 0, 64, 1},
    {"int32", "i32", 0, 32, 1},
    {"int16", "i16", 0, 16, 1},
    {"int8", "i8", 0, 8, 1},
    {"uint8", "u8", 1, 8, 1},
    {"bool", "bool", 6, 8, 1},
}};

constexpr const DTypeInfo& Info(DType t) { return kDTypes[size_t(t)]; }
constexpr int64_t ByteSize(DType t) { return Info(t).bits * Info(t).lanes / 8; }

// A set of dtypes: bit i = DType(i).
using DTypeMask = uint32_t;
template <class... T>
constexpr DTypeMask Mask(T... t) {
  return (DTypeMask{0} | ... | (DTypeMask{1} << int(t)));
}
inline constexpr DTypeMask kFloat32And64 = Mask(DType::kF32, DType::kF64);
inline constexpr DTypeMask kFloats = Mask(DType::kF32, DType::kF64, DType::kF16, DType::kBF16);
inline constexpr DTypeMask kF32BF16 = Mask(DType::kF32, DType::kBF16);
inline constexpr DTypeMask kF32F16BF16 = Mask(DType::kF32, DType::kF16, DType::kBF16);
inline constexpr DTypeMask kIndices = Mask(DType::kI32, DType::kI64);
inline constexpr DTypeMask kAnyDType = ~DTypeMask{1};

// Returns kUnknown for anything that is not in the table.
constexpr DType DTypeFromDlpack(uint8_t code, uint8_t bits, uint16_t lanes) {
  for (size_t i = 1; i < kDTypes.size(); ++i) {
    const DTypeInfo& d = kDTypes[i];
    if (d.dlpack_code == code && d.bits == bits && d.lanes == lanes) return DType(i);
  }
  return DType::kUnknown;
}
constexpr DType DTypeOf(const lz_tensor& t) { return DTypeFromDlpack(t.dtype.code, t.dtype.bits, t.dtype.lanes); }
constexpr DType DTypeFromName(std::string_view name) {  // long or short
  for (size_t i = 1; i < kDTypes.size(); ++i) {
    if (kDTypes[i].name == name || kDTypes[i].short_name == name) return DType(i);
  }
  return DType::kUnknown;
}

}  // namespace lz
