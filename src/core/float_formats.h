// Conversions between float formats, bit-exact, with round to nearest even. Sources: IEEE 754-2019 (binary16), the
// bfloat16 truncation of binary32, OCP 8-bit floating point 1.0 (E4M3FN, E5M2), OCP MX 1.0 (E8M0).
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace lz {

constexpr float BF16ToFloat(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }
constexpr uint16_t FloatToBF16(float f) {
  const uint32_t u = std::bit_cast<uint32_t>(f);
  if ((u & 0x7fffffffu) > 0x7f800000u) return uint16_t((u >> 16) | 0x40);  // NaN stays NaN
  return uint16_t((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

inline float F16ToFloat(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000) << 16;
  const uint32_t exponent = (h >> 10) & 31;
  const uint32_t mantissa = h & 0x3ff;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float magnitude = std::ldexp(float(mantissa), -24);
  return sign ? -magnitude : magnitude;
}
// Rounds once from double, so that references are not rounded twice.
inline uint16_t DoubleToF16(double v) {
  const uint16_t sign = std::signbit(v) ? 0x8000 : 0;
  if (std::isnan(v)) return sign | 0x7e00;
  double a = std::fabs(v);
  if (a >= 65520.0) return sign | 0x7c00;
  if (a < 0x1p-14) return sign | uint16_t(std::nearbyint(std::ldexp(a, 24)));  // subnormal, may carry into normal
  int e;
  std::frexp(a, &e);                                                 // a = f * 2^e, f in [0.5, 1)
  const int64_t m = int64_t(std::nearbyint(std::ldexp(a, 11 - e)));  // in [1024, 2048]
  return sign | uint16_t(((e + 14) << 10) + (m - 1024));
}
inline uint16_t DoubleToBF16(double v) {
  if (std::isnan(v)) return 0x7fc0;
  // Rounds to odd into float first, so that only the second rounding matters.
  float f = float(v);
  if (double(f) != v && !std::isinf(f)) {
    uint32_t u = std::bit_cast<uint32_t>(f);
    const bool away = std::fabs(double(f)) > std::fabs(v);
    if (away) --u;  // truncate toward zero
    u |= 1;
    f = std::bit_cast<float>(u);
  }
  return FloatToBF16(f);
}

inline float F8E4M3ToFloat(uint8_t b) {
  const int exponent = (b >> 3) & 15, mantissa = b & 7;
  const float sign = b & 0x80 ? -1.0f : 1.0f;
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<float>::quiet_NaN();
  return exponent ? sign * std::ldexp(float(8 + mantissa), exponent - 10) : sign * std::ldexp(float(mantissa), -9);
}
inline float F8E5M2ToFloat(uint8_t b) { return F16ToFloat(uint16_t(uint16_t{b} << 8)); }
inline float F8E8M0ToFloat(uint8_t b) {
  return b == 255 ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0f, int(b) - 127);
}

}  // namespace lz
