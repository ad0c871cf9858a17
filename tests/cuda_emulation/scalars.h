// Functions of device code that are one thread's own: bits, conversions, arithmetic. Part of emulation.h.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

inline unsigned __float_as_uint(float v) { return std::bit_cast<unsigned>(v); }
inline int __float_as_int(float v) { return std::bit_cast<int>(v); }
inline float __uint_as_float(unsigned v) { return std::bit_cast<float>(v); }
inline float __int_as_float(int v) { return std::bit_cast<float>(v); }
inline int __popc(unsigned v) { return std::popcount(v); }
inline int __popcll(unsigned long long v) { return std::popcount(v); }
inline int __clz(int v) { return std::countl_zero(unsigned(v)); }
inline int __clzll(long long v) { return std::countl_zero(static_cast<unsigned long long>(v)); }
inline int __ffs(int v) { return v == 0 ? 0 : std::countr_zero(unsigned(v)) + 1; }
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned(uint64_t(a) * b >> 32); }
inline unsigned long long __float2ull_rn(float v) { return static_cast<unsigned long long>(std::nearbyint(v)); }
inline unsigned long long __double2ull_rn(double v) { return static_cast<unsigned long long>(std::nearbyint(v)); }
inline float __expf(float v) { return std::exp(v); }
inline float __logf(float v) { return std::log(v); }
inline float __fdividef(float a, float b) { return a / b; }
inline float rsqrtf(float v) { return 1.0f / std::sqrt(v); }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
using std::isfinite;
using std::isinf;
using std::isnan;
using std::max;
using std::min;
