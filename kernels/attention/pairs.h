// Vectors of attention: head dimensions as pairs of vectors, loaded from f32, bf16, f16, FP8 and int8, stored only
// as floats.
//
// Head dimensions are in "pair order": blocks of two vectors (lo, hi). That is memory order, except for bf16, where lo
// has the even and hi the odd elements of the block, which a shift and a mask extract from one load. Include only from
// files that Highway compiles per target (after kernels/simd.h).
#if defined(LZ_KERNELS_ATTENTION_PAIRS_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LZ_KERNELS_ATTENTION_PAIRS_H_
#undef LZ_KERNELS_ATTENTION_PAIRS_H_
#else
#define LZ_KERNELS_ATTENTION_PAIRS_H_
#endif

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "kernels/attention/problem.h"
#include "kernels/simd.h"

#if defined(__clang__)
#define LZ_UNROLL _Pragma("clang loop unroll(full)")
#else
#define LZ_UNROLL _Pragma("GCC unroll 16")
#endif

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE::attn {

using attention::kBlock;
using attention::kPackedBlock;
using D = hn::ScalableTag<float>;
using DU = hn::RebindToUnsigned<D>;
using V = hn::Vec<D>;
inline constexpr D kD{};
inline constexpr int kL = int(hn::MaxLanes(D()));
inline constexpr int kPair = 2 * kL;
inline constexpr int64_t kAhead = 8;            // prefetch distance in keys; a multiple of Dots' 4 G
inline constexpr int kMaxR = kL >= 16 ? 4 : 3;  // query rows that share the registers of one pass

// Element types of caches only; for storage.
struct F8E4M3 {
  uint8_t bits;
};
struct F8E5M2 {
  uint8_t bits;
};
// The unit of loaded numbers; queries and outputs are multiplied by it. Numbers of e4m3 are loaded as the f16 with the
// same bits, 2^8 times smaller.
template <class T>
inline constexpr float kUnit = std::is_same_v<T, F8E4M3> ? 256.0f : 1.0f;

HWY_INLINE void LoadPair(const float* p, V& lo, V& hi) {
  lo = hn::LoadU(kD, p);
  hi = hn::LoadU(kD, p + kL);
}
HWY_INLINE void SplitPair(hn::Vec<DU> u, V& lo, V& hi) {
  lo = hn::BitCast(kD, hn::ShiftLeft<16>(u));
  hi = hn::BitCast(kD, hn::And(u, hn::Set(DU(), 0xffff0000u)));
}
HWY_INLINE void LoadPair(const BF16* p, V& lo, V& hi) {
  SplitPair(hn::LoadU(DU(), reinterpret_cast<const uint32_t*>(p)), lo, hi);
}

HWY_INLINE void LoadPair(const F16* p, V& lo, V& hi) {
  lo = LoadF32(kD, p);
  hi = LoadF32(kD, p + kL);
}
using DU16 = hn::Repartition<uint16_t, D>;
HWY_INLINE void PromotePair(hn::Vec<DU16> bits, V& lo, V& hi) {  // bits of f16
  const hn::Half<DU16> half;
  lo = PromoteF16(kD, hn::LowerHalf(half, bits));
  hi = PromoteF16(kD, hn::UpperHalf(half, bits));
}
HWY_INLINE void LoadPair(const F8E4M3* p, V& lo, V& hi) {
  const DU16 d;
  const hn::RebindToSigned<DU16> di;
  const hn::Rebind<int8_t, DU16> d8;
  const auto codes = hn::BitCast(d, hn::PromoteTo(di, hn::LoadU(d8, reinterpret_cast<const int8_t*>(p))));
  const auto bits = hn::And(hn::ShiftLeft<7>(codes), hn::Set(d, 0xbf80));
  // Only NaN, all ones, carries into the exponent's first bit; then all its bits are set.
  PromotePair(hn::Or(bits, hn::And(hn::Add(bits, hn::Set(d, 0x80)), hn::Set(d, 0x4000))), lo, hi);
}
HWY_INLINE void LoadPair(const F8E5M2* p, V& lo, V& hi) {  // it is the upper byte of f16
  const DU16 d;
  const hn::Rebind<uint8_t, DU16> d8;
  PromotePair(hn::ShiftLeft<8>(hn::PromoteTo(d, hn::LoadU(d8, reinterpret_cast<const uint8_t*>(p)))), lo, hi);
}
HWY_INLINE void LoadPair(const int8_t* p, V& lo, V& hi) {
  const hn::RebindToSigned<D> di;
  const hn::Rebind<int8_t, D> d8;
  lo = hn::ConvertTo(kD, hn::PromoteTo(di, hn::LoadU(d8, p)));
  hi = hn::ConvertTo(kD, hn::PromoteTo(di, hn::LoadU(d8, p + kL)));
}

// The first n < kPair elements, followed by zeros; nothing past them is read.
HWY_INLINE void LoadPairN(const float* p, int64_t n, V& lo, V& hi) {
  if constexpr (HWY_TARGET <= HWY_AVX2) {
    lo = hn::MaskedLoad(hn::FirstN(kD, size_t(n)), kD, p);
    hi = n > kL ? hn::MaskedLoad(hn::FirstN(kD, size_t(n - kL)), kD, p + kL) : hn::Zero(kD);
  } else {
    float buffer[kPair] = {};
    std::memcpy(buffer, p, size_t(n) * sizeof(float));
    LoadPair(buffer, lo, hi);
  }
}
HWY_INLINE void LoadPairN(const BF16* p, int64_t n, V& lo, V& hi) {
  if (HWY_TARGET <= HWY_AVX2 && n % 2 == 0) {
    const auto mask = hn::FirstN(DU(), size_t(n / 2));
    SplitPair(hn::MaskedLoad(mask, DU(), reinterpret_cast<const uint32_t*>(p)), lo, hi);
  } else {
    BF16 buffer[kPair] = {};
    std::memcpy(buffer, p, size_t(n) * sizeof(BF16));
    LoadPair(buffer, lo, hi);
  }
}
template <class T>
HWY_INLINE void LoadPairN(const T* p, int64_t n, V& lo, V& hi) {
  T buffer[kPair] = {};
  std::memcpy(buffer, p, size_t(n) * sizeof(T));
  LoadPair(buffer, lo, hi);
}

HWY_INLINE void StorePair(V lo, V hi, float* p) {
  hn::StoreU(lo, kD, p);
  hn::StoreU(hi, kD, p + kL);
}
HWY_INLINE hn::Vec<DU> RoundToBF16(V v) {  // the 16 bits of the result are in the upper half
  const DU d;
  const auto u = hn::BitCast(d, v);
  const auto odd = hn::And(hn::ShiftRight<16>(u), hn::Set(d, 1));
  const auto rounded = hn::Add(hn::Add(u, hn::Set(d, 0x7fff)), odd);
  return hn::IfThenElse(hn::RebindMask(d, hn::IsNaN(v)), hn::Or(u, hn::Set(d, 0x400000)), rounded);
}
HWY_INLINE void StorePair(V lo, V hi, BF16* p) {
  const auto upper = hn::And(RoundToBF16(hi), hn::Set(DU(), 0xffff0000u));
  const auto both = hn::Or(hn::ShiftRight<16>(RoundToBF16(lo)), upper);
  hn::StoreU(both, DU(), reinterpret_cast<uint32_t*>(p));
}
HWY_INLINE void StorePair(V lo, V hi, F16* p) {
  StoreF32(kD, lo, p);
  StoreF32(kD, hi, p + kL);
}
template <class T>
HWY_INLINE void StorePairN(V lo, V hi, T* p, int64_t n) {
  T buffer[kPair];
  StorePair(lo, hi, buffer);
  std::memcpy(p, buffer, size_t(n) * sizeof(T));
}

// The first min(n, kPair) elements in the order of T's pairs; a load appends zeros.
template <class T, class From>
HWY_INLINE void LoadAs(const From* p, int64_t n, V& lo, V& hi) {
  if constexpr (std::is_same_v<From, T>) {
    n >= kPair ? LoadPair(p, lo, hi) : LoadPairN(p, n, lo, hi);
  } else {
    From buffer[kPair] = {};
    std::memcpy(buffer, p, size_t(std::min<int64_t>(n, kPair)) * sizeof(From));
    const V first = LoadF32(kD, buffer), second = LoadF32(kD, buffer + kL);
    constexpr bool kEvenOdd = std::is_same_v<T, BF16>;
    lo = kEvenOdd ? hn::ConcatEven(kD, second, first) : first;
    hi = kEvenOdd ? hn::ConcatOdd(kD, second, first) : second;
  }
}
template <class T, class To>
HWY_INLINE void StoreAs(V lo, V hi, To* p, int64_t n) {
  if constexpr (std::is_same_v<To, T>) {
    n >= kPair ? StorePair(lo, hi, p) : StorePairN(lo, hi, p, n);
  } else {
    float floats[kPair];
    std::is_same_v<T, BF16> ? hn::StoreInterleaved2(lo, hi, kD, floats) : StorePair(lo, hi, floats);
    To buffer[kPair];
    StoreF32(kD, hn::LoadU(kD, floats), buffer);
    StoreF32(kD, hn::LoadU(kD, floats + kL), buffer + kL);
    std::memcpy(p, buffer, size_t(std::min<int64_t>(n, kPair)) * sizeof(To));
  }
}

}  // namespace lz::HWY_NAMESPACE::attn
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
