// Functions of simd_math.h with the precision that the result's type needs: ExpTo<BF16>, SiluTo<BF16> ... are shorter,
// with a relative error of 5e-4 (GeluErfTo 7e-4, below -5 both gelus 1e-3), where rounding to bf16 has 2e-3; for any
// other type they are those of simd_math.h.
//   const auto y = SiluTo<T>(d, x);
// Include after kernels/simd.h, under the same rules. Source: own minimax fits (Lawson's algorithm).
#if defined(LZ_KERNELS_SIMD_MATH_BF16_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LZ_KERNELS_SIMD_MATH_BF16_H_
#undef LZ_KERNELS_SIMD_MATH_BF16_H_
#else
#define LZ_KERNELS_SIMD_MATH_BF16_H_
#endif

#include <type_traits>

#include "hwy/highway.h"
#include "kernels/simd.h"
#include "kernels/simd_math.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE {

// Range, NaN and infinities are Exp's.
template <class Out, class D, class V = hn::Vec<D>>
HWY_INLINE V ExpTo(D d, V x) {
  if constexpr (!std::is_same_v<Out, BF16>) return Exp(d, x);
  const hn::RebindToUnsigned<D> du;
  const V log2_e = hn::Set(d, 1.44269504089f), magic = hn::Set(d, 12582912.0f + 126.0f);
  x = AtLeast(hn::Set(d, -87.3f), AtMost(hn::Set(d, 88.8f), x));
  const V shifted = hn::MulAdd(x, log2_e, magic);  // as in Exp
  const V r = hn::MulSub(x, log2_e, hn::Sub(shifted, magic));
  const V p = Poly(d, r, 1.9998561471f, 1.3865219709f, 0.4852222444f, 0.1103433381f);  // 2 * 2^r, |r| <= 1/2
  return hn::Mul(p, hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(du, shifted))));
}

// x / y for y >= 1.
template <class Out, class D, class V = hn::Vec<D>>
HWY_INLINE V QuotientTo(D, V x, V y) {
#if HWY_ARCH_X86  // 11 bits or more; Arm's has 8
  if constexpr (std::is_same_v<Out, BF16>) return hn::Mul(x, hn::ApproximateReciprocal(y));
#endif
  return hn::Div(x, y);
}

// 1 / (1 + e^-x).
template <class Out, class D, class V = hn::Vec<D>>
HWY_INLINE V SigmoidTo(D d, V x) {
  const V one = hn::Set(d, 1.0f);
  return QuotientTo<Out>(d, one, hn::Add(one, ExpTo<Out>(d, hn::Neg(x))));
}
// x / (1 + e^(-alpha x)).
template <class Out, class D, class V = hn::Vec<D>>
HWY_INLINE V ScaledSiluTo(D d, V x, float alpha) {
  return QuotientTo<Out>(d, x, hn::Add(hn::Set(d, 1.0f), ExpTo<Out>(d, hn::Mul(x, hn::Set(d, -alpha)))));
}
template <class Out, class D, class V = hn::Vec<D>>
HWY_INLINE V SiluTo(D d, V x) {
  return QuotientTo<Out>(d, x, hn::Add(hn::Set(d, 1.0f), ExpTo<Out>(d, hn::Neg(x))));
}

template <class Out, class D, class V = hn::Vec<D>>
HWY_INLINE V GeluErfTo(D d, V x) {
  if constexpr (!std::is_same_v<Out, BF16>) return GeluErf(d, x);
  const V one = hn::Set(d, 1.0f), half = hn::Set(d, 0.5f);
  const V t = QuotientTo<Out>(d, one, hn::MulAdd(hn::Abs(x), hn::Set(d, 0.42f * 0.70710678f), one));
  const V p =
      Poly(d, t, 0.1163305179f, 0.1417008603f, 0.0204675484f, 0.2215460212f);  // half of erfc's, as ErfcPositive
  const V tail = hn::Mul(hn::Mul(t, p), ExpTo<Out>(d, hn::Neg(hn::Mul(hn::Mul(x, half), x))));
  return hn::Mul(x, hn::IfThenElse(hn::Gt(x, hn::Zero(d)), hn::Sub(one, tail), tail));
}

template <class Out, class D, class V = hn::Vec<D>>
HWY_INLINE V GeluTanhTo(D d, V x) {
  if constexpr (!std::is_same_v<Out, BF16>) return GeluTanh(d, x);
  const V x2 = hn::Mul(x, x);
  const V u = hn::Mul(x, hn::MulAdd(x2, hn::Set(d, -0.0713548163f), hn::Set(d, -1.5957691216f)));
  return QuotientTo<Out>(d, x, hn::Add(hn::Set(d, 1.0f), ExpTo<Out>(d, u)));
}

}  // namespace lz::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
