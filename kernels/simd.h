// Loads and stores of Highway vectors as f32, whatever the element type: shared by the SIMD kernels.
// Include inside HWY_NAMESPACE's file only (after hwy/highway.h, within HWY_BEFORE_NAMESPACE).
#if defined(LZ_KERNELS_SIMD_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LZ_KERNELS_SIMD_H_
#undef LZ_KERNELS_SIMD_H_
#else
#define LZ_KERNELS_SIMD_H_
#endif

#include <cstdint>

#include "core/float_formats.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace lz {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Element types of kernels. BF16 is storage only.
struct BF16 {
  uint16_t bits;
};

HWY_INLINE float ToFloat(float v) { return v; }
HWY_INLINE float ToFloat(BF16 v) { return BF16ToFloat(v.bits); }
HWY_INLINE void FromFloat(float v, float* p) { *p = v; }
HWY_INLINE void FromFloat(float v, BF16* p) { p->bits = FloatToBF16(v); }

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

}  // namespace HWY_NAMESPACE
}  // namespace lz
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
