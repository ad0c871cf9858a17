// Loads and stores of Highway vectors as f32, for any element type, shared by the SIMD kernels. Include only from files
// that Highway compiles per target (after hwy/highway.h, within HWY_BEFORE_NAMESPACE).
#if defined(LZ_KERNELS_SIMD_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LZ_KERNELS_SIMD_H_
#undef LZ_KERNELS_SIMD_H_
#else
#define LZ_KERNELS_SIMD_H_
#endif

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "core/dtype.h"
#include "core/float_formats.h"
#include "hwy/highway.h"

// Defines Launch(args) as Run<T>(args), with the element type T of `tensor`.
#define LZ_LAUNCH_BY_FLOAT(tensor)                                                                           \
  int32_t Launch(const lz_kernel_args* args) {                                                               \
    return WithFloatType(DTypeOf(args->tensors[tensor]), [args](auto t) { return Run<decltype(t)>(args); }); \
  }                                                                                                          \
  static_assert(true)

// After the last target: defines FunctionBest, which calls `Function` as compiled for the best target of this CPU.
#define LZ_HWY_EXPORT(Function)                                                                    \
  HWY_EXPORT(Function);                                                                            \
  auto Function##Best(const lz_kernel_args* args) { return HWY_DYNAMIC_DISPATCH(Function)(args); } \
  static_assert(true)

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Element types of kernels. BF16 and F16 are for storage only.
struct BF16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

// The type of intermediate values between two products of tensors of T: not f16, whose subnormal numbers have too
// few bits.
template <class T>
using Intermediate = std::conditional_t<std::is_same_v<T, F16>, float, T>;

// Returns body(T{}) with the element type T of `type`, one of f32, f16, bf16.
template <class Body>
HWY_INLINE auto WithFloatType(DType type, Body&& body) {
  if (type == DType::kF32) return body(float{});
  return type == DType::kF16 ? body(F16{}) : body(BF16{});
}

HWY_INLINE float ToFloat(float v) { return v; }
HWY_INLINE float ToFloat(BF16 v) { return BF16ToFloat(v.bits); }
HWY_INLINE float ToFloat(F16 v) { return F16ToFloat(v.bits); }
HWY_INLINE void FromFloat(float v, float* p) { *p = v; }
HWY_INLINE void FromFloat(float v, BF16* p) { p->bits = FloatToBF16(v); }
HWY_INLINE void FromFloat(float v, F16* p) { p->bits = DoubleToF16(double(v)); }

template <class D>
HWY_INLINE hn::Vec<D> LoadF32(D d, const float* p) {
  return hn::LoadU(d, p);
}
template <class D>
HWY_INLINE hn::Vec<D> LoadF32(D d, const BF16* p) {
  const hn::Rebind<uint16_t, D> d16;
  const hn::RebindToUnsigned<D> d32;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, hn::LoadU(d16, &p->bits))));
}
template <class D>
HWY_INLINE void StoreF32(D d, hn::Vec<D> v, float* p) {
  hn::StoreU(v, d, p);
}
// Rounds to nearest even; NaN stays NaN.
template <class D>
HWY_INLINE void StoreF32(D d, hn::Vec<D> v, BF16* p) {
  const hn::RebindToUnsigned<D> d32;
  const hn::Rebind<uint16_t, D> d16;
  const auto u = hn::BitCast(d32, v);
  const auto odd = hn::And(hn::ShiftRight<16>(u), hn::Set(d32, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(u, hn::Set(d32, 0x7fff)), odd));
  const auto quiet = hn::Or(hn::ShiftRight<16>(u), hn::Set(d32, 0x40));
  const auto is_nan = hn::RebindMask(d32, hn::IsNaN(v));
  hn::StoreU(hn::TruncateTo(d16, hn::IfThenElse(is_nan, quiet, rounded)), d16, &p->bits);
}

// Highway's conversions truncate and lose infinities if the instruction set has no conversion of its own.
#if HWY_TARGET == HWY_SSE4 || HWY_TARGET == HWY_SSSE3 || HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
#define LZ_SIMD_HAS_F16 0
#else
#define LZ_SIMD_HAS_F16 1
#endif
// Converts the bits of f16.
template <class D>
HWY_INLINE hn::Vec<D> PromoteF16(D d, hn::Vec<hn::Rebind<uint16_t, D>> bits) {
#if LZ_SIMD_HAS_F16
  return hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, D>(), bits));
#else
  HWY_ALIGN uint16_t halves[hn::MaxLanes(d)];
  HWY_ALIGN float lanes[hn::MaxLanes(d)];
  hn::Store(bits, hn::Rebind<uint16_t, D>(), halves);
  for (size_t i = 0; i < hn::Lanes(d); ++i) lanes[i] = F16ToFloat(halves[i]);
  return hn::Load(d, lanes);
#endif
}
// Loads from any address: blocks of quantized weights are bytes, and may begin at an odd one.
template <class D>
HWY_INLINE hn::Vec<D> LoadF32(D d, const F16* p) {
#if LZ_SIMD_HAS_F16
  const hn::Rebind<hwy::float16_t, D> df16;
  const hn::Repartition<uint8_t, decltype(df16)> d8;
  return hn::PromoteTo(d, hn::BitCast(df16, hn::LoadU(d8, reinterpret_cast<const uint8_t*>(p))));
#else
  F16 halves[hn::MaxLanes(d)];
  std::memcpy(halves, static_cast<const void*>(p), sizeof(halves));
  HWY_ALIGN float lanes[hn::MaxLanes(d)];
  for (size_t i = 0; i < hn::Lanes(d); ++i) lanes[i] = ToFloat(halves[i]);
  return hn::Load(d, lanes);
#endif
}
// Rounds to nearest even; NaN stays NaN.
template <class D>
HWY_INLINE void StoreF32(D d, hn::Vec<D> v, F16* p) {
#if LZ_SIMD_HAS_F16
  const hn::Rebind<uint16_t, D> d16;
  const hn::Rebind<hwy::float16_t, D> df16;
  hn::StoreU(hn::BitCast(d16, hn::DemoteTo(df16, v)), d16, &p->bits);
#else
  HWY_ALIGN float lanes[hn::MaxLanes(d)];
  hn::Store(v, d, lanes);
  for (size_t i = 0; i < hn::Lanes(d); ++i) FromFloat(lanes[i], p + i);
#endif
}
#undef LZ_SIMD_HAS_F16

// The ends of rows: the first `count` < Lanes(d) elements, the rest of the vector 0; nothing past them is accessed.
template <class D, class T>
HWY_INLINE hn::Vec<D> LoadF32N(D d, const T* p, size_t count) {
  HWY_ALIGN T lanes[hn::MaxLanes(d)] = {};
  std::memcpy(lanes, p, count * sizeof(T));
  return LoadF32(d, lanes);
}
template <class D, class T>
HWY_INLINE void StoreF32N(D d, hn::Vec<D> v, T* p, size_t count) {
  HWY_ALIGN T lanes[hn::MaxLanes(d)];
  StoreF32(d, v, lanes);
  std::memcpy(p, lanes, count * sizeof(T));
}

}  // namespace lz::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
