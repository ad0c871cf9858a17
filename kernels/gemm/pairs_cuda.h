// Stored codes as pairs of T (__half, __nv_bfloat16), exactly, in registers: the low half of 32 bits is the first.
#pragma once

#include <cuda_fp8.h>

#include "kernels/mma_cuda.h"

#ifdef __CUDACC__
namespace lz::few_rows {

// Bytes that `selector` names of the 8 bytes of a and b.
__device__ inline uint32_t Bytes(uint32_t a, uint32_t b, uint32_t selector) {
#ifdef LZ_CUDA_EMULATED
  const uint64_t both = uint64_t(b) << 32 | a;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) result |= uint32_t(both >> 8 * (selector >> 4 * i & 7) & 255) << 8 * i;
  return result;
#else
  return __byte_perm(a, b, selector);
#endif
}
__device__ inline uint32_t Half(const uint8_t* at) { return *reinterpret_cast<const uint16_t*>(at); }
__device__ inline uint32_t Word(const uint8_t* at) { return *reinterpret_cast<const uint32_t*>(at); }
// At an even address.
__device__ inline uint32_t EvenWord(const uint8_t* at) { return Half(at) | Half(at + 2) << 16; }
__device__ inline float HalfFloat(const uint8_t* at) { return __half2float(*reinterpret_cast<const __half*>(at)); }

template <class T>
struct TwoOf {
  using Vector = std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>;
  union Bits {
    uint32_t bits;
    Vector v;
    __device__ explicit Bits(uint32_t b) : bits(b) {}
  };
};
template <class T>
__device__ uint32_t Less(uint32_t pair, uint32_t by) {
  typename TwoOf<T>::Bits a(pair), b(by);
  a.v = __hsub2(a.v, b.v);
  return a.bits;
}
template <class T>
__device__ uint32_t Times(uint32_t pair, uint32_t by) {
  typename TwoOf<T>::Bits a(pair), b(by);
  a.v = __hmul2(a.v, b.v);
  return a.bits;
}

// Integers below 128 in both halves, their bits of `flip` changed, minus `bias`: they become the last bits of a float.
template <class T>
__device__ uint32_t SmallIntegers(uint32_t codes, uint32_t flip, uint32_t bias) {
  constexpr uint32_t kMagic = std::is_same_v<T, __half> ? 0x64006400u : 0x43004300u;  // 1024, 128
  return Less<T>(codes ^ (kMagic | flip), kMagic + bias * 0x10001u);
}
// Bytes 0 and 2 of `codes`, or 1 and 3.
template <class T>
__device__ uint32_t ByteIntegers(uint32_t codes, int which, uint32_t bias) {
  if constexpr (std::is_same_v<T, __half>) {
    return Less<T>((codes >> 8 * which & 0x00ff00ffu) | 0x64006400u, 0x64006400u + bias * 0x10001u);
  } else {
    const float from = 0x1p23f + float(bias);
    return PackPair<T>(__uint_as_float(Bytes(codes, 0x4b000000u, 0x7440u + unsigned(which))) - from,
                       __uint_as_float(Bytes(codes, 0x4b000000u, 0x7442u + unsigned(which))) - from);
  }
}
// E2M1 in the low 4 bits of both halves: its bits as those of T are too small by a power of two.
template <class T>
__device__ uint32_t HalfByteFloats(uint32_t codes) {
  constexpr bool kF16 = std::is_same_v<T, __half>;
  const uint32_t magnitude = kF16 ? (codes << 9 & 0x0e000e00u) : (codes << 6 & 0x01c001c0u);
  return Times<T>(magnitude | (codes << 12 & 0x80008000u), kF16 ? 0x74007400u : 0x7e807e80u);  // 2^14, 2^126
}
template <class T>
__device__ uint32_t ByteFloats(uint32_t two, __nv_fp8_interpretation_t kind) {
  const __half2_raw raw = __nv_cvt_fp8x2_to_halfraw2(__nv_fp8x2_storage_t(two), kind);
  if constexpr (std::is_same_v<T, __half>) return uint32_t(raw.x) | uint32_t(raw.y) << 16;
  return PackPair<T>(__half2float(__half(__half_raw{raw.x})), __half2float(__half(__half_raw{raw.y})));
}

}  // namespace lz::few_rows
#endif  // __CUDACC__
