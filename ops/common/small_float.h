// Floats of at most 8 bits as tables of four numbers: decode and round to nearest even, bit-exact. Sources: OCP 8-bit
// floating point 1.0 (E4M3FN, E5M2), OCP MX 1.0 (E2M1, E2M3, E3M2, E8M0), "8-bit numerical formats for deep neural
// networks" (the forms without negative zero and infinity: FNUZ).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace lz::ops {

// A sign bit, `exponent` bits and `mantissa` bits with subnormals below the exponent 1.
struct SmallFloat {
  int exponent, mantissa, bias;
  uint8_t max;        // code of the largest finite value
  int infinity;       // its code, or -1
  int nan;            // its code, or -1: NaN becomes 0
  bool fnuz = false;  // 0x80 is NaN: there is no negative zero
  constexpr uint8_t sign() const { return uint8_t(1u << (exponent + mantissa)); }
};
inline constexpr SmallFloat kE4M3FN = {4, 3, 7, 0x7e, -1, 0x7f};
inline constexpr SmallFloat kE5M2 = {5, 2, 15, 0x7b, 0x7c, 0x7f};
inline constexpr SmallFloat kE4M3FNUZ = {4, 3, 8, 0x7f, -1, 0x80, true};
inline constexpr SmallFloat kE5M2FNUZ = {5, 2, 16, 0x7f, -1, 0x80, true};
inline constexpr SmallFloat kE2M3FN = {2, 3, 1, 0x1f, -1, -1};
inline constexpr SmallFloat kE3M2FN = {3, 2, 3, 0x1f, -1, -1};
inline constexpr SmallFloat kE2M1FN = {2, 1, 1, 0x07, -1, -1};

inline double Decode(const SmallFloat& f, uint8_t code) {
  const int magnitude = code & (f.sign() - 1);
  if (f.fnuz ? code == f.nan : (f.nan >= 0 && magnitude > f.max && magnitude != f.infinity)) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  const int e = magnitude >> f.mantissa, m = magnitude & ((1 << f.mantissa) - 1);
  const double value = magnitude == f.infinity ? std::numeric_limits<double>::infinity()
                       : e == 0                ? std::ldexp(m, 1 - f.bias - f.mantissa)
                                               : std::ldexp(m + (1 << f.mantissa), e - f.bias - f.mantissa);
  return code & f.sign() ? -value : value;
}

// Above the largest finite value: that value if `saturate`, else infinity, else NaN, else that value.
inline uint8_t Encode(const SmallFloat& f, double value, bool saturate) {
  const uint8_t sign = std::signbit(value) ? f.sign() : 0;
  if (std::isnan(value)) return f.nan < 0 ? 0 : f.fnuz ? uint8_t(f.nan) : uint8_t(f.nan | sign);
  const double largest = Decode(f, f.max), a = std::fmin(std::fabs(value), 2 * largest);
  const int least = 1 - f.bias;
  const int e = a == 0 ? least : std::max(std::ilogb(a), least);
  // A mantissa that rounds up carries into the exponent.
  int code = ((e - least) << f.mantissa) + int(std::nearbyint(std::ldexp(a, f.mantissa - e)));
  if (code > f.max) {
    code = f.max;
    if (!saturate && f.infinity >= 0) code = f.infinity;
    if (!saturate && f.infinity < 0 && f.nan >= 0) return f.fnuz ? uint8_t(f.nan) : uint8_t(f.nan | sign);
  }
  return f.fnuz && code == 0 ? 0 : uint8_t(code | sign);
}

// E8M0: 2^(code - 127), 255 is NaN. It cannot represent zero and negative numbers.
inline double DecodeE8M0(uint8_t code) {
  return code == 255 ? std::numeric_limits<double>::quiet_NaN() : std::ldexp(1.0, int(code) - 127);
}

}  // namespace lz::ops
