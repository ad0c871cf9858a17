// Elementary functions of f32 Highway vectors for the SIMD kernels: Exp, Sigmoid, Silu, Tanh, Erf, GeluErf, GeluTanh.
//   const auto p = Exp(d, hn::Sub(logits, max));  // softmax; -inf becomes 0, NaN stays NaN
// Include after kernels/simd.h, under the same rules. Errors are relative to exact arithmetic over the whole f32 range.
// Source: own minimax fits (Lawson's algorithm) after Cody and Waite's range reduction.
#if defined(LZ_KERNELS_SIMD_MATH_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LZ_KERNELS_SIMD_MATH_H_
#undef LZ_KERNELS_SIMD_MATH_H_
#else
#define LZ_KERNELS_SIMD_MATH_H_
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// c0 + c1 x + c2 x^2 + ..., Horner.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Poly(D d, V, float c) {
  return hn::Set(d, c);
}
template <class D, class V = hn::Vec<D>, class... C>
HWY_INLINE V Poly(D d, V x, float c0, C... higher) {
  return hn::MulAdd(Poly(d, x, higher...), x, hn::Set(d, c0));
}

// x bounded from one side; NaN stays NaN: if one operand is NaN, x86's min and max return the second, NEON's
// the number.
template <class V>
HWY_INLINE V AtLeast(V bound, V x) {
#if HWY_ARCH_X86
  return hn::Max(bound, x);
#else
  return hn::IfThenElse(hn::Lt(x, bound), bound, x);
#endif
}
template <class V>
HWY_INLINE V AtMost(V bound, V x) {
#if HWY_ARCH_X86
  return hn::Min(bound, x);
#else
  return hn::IfThenElse(hn::Gt(x, bound), bound, x);
#endif
}

// e^x. Relative error <= 1.9e-7 (1.6 ulp); Exp(0) is exactly 1. Above 88.72 inf; below -86.98 exactly 0 (the last
// normal binade and the subnormals are flushed). NaN stays NaN. About 13 instructions per vector.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Exp(D d, V x) {
  const hn::RebindToUnsigned<D> du;
  x = AtLeast(hn::Set(d, -87.3f), AtMost(hn::Set(d, 88.8f), x));
  // Adding 1.5 * 2^23 leaves round(x / ln 2) in the low mantissa bits; + 126 makes them the exponent of 2^(n-1).
  const V magic = hn::Set(d, 12582912.0f + 126.0f);
  const V shifted = hn::MulAdd(x, hn::Set(d, 1.44269504089f), magic);
  const V n = hn::Sub(shifted, magic);
  V r = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), x);  // exact: 10 significant bits
  r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), r);
  // 2 e^r on |r| <= ln(2) / 2: the factor 2 keeps 2^(n-1) finite up to the largest result.
  const V p = Poly(d, r, 2.0f, 1.9999994049f, 0.9999828092f, 0.3333529319f, 0.0837983259f, 0.0165801693f);
  return hn::Mul(p, hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(du, shifted))));
}

// 1 / (1 + e^-x). Relative error <= 2.5e-7.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Sigmoid(D d, V x) {
  const V one = hn::Set(d, 1.0f);
  return hn::Div(one, hn::Add(one, Exp(d, hn::Neg(x))));
}
// x / (1 + e^-x). Relative error <= 2.5e-7. Silu(-inf) is NaN, as in the formula.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Silu(D d, V x) {
  return hn::Div(x, hn::Add(hn::Set(d, 1.0f), Exp(d, hn::Neg(x))));
}

// Relative error <= 2.5e-7.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Tanh(D d, V x) {
  const V a = hn::Abs(x), x2 = hn::Mul(x, x), one = hn::Set(d, 1.0f), two = hn::Set(d, 2.0f);
  const V small = hn::MulAdd(
      hn::Mul(x, x2), Poly(d, x2, -0.3333325985f, 0.1333083037f, -0.0536880245f, 0.0204694235f, -0.0055151672f), x);
  const V large = hn::Sub(one, hn::Div(two, hn::Add(one, Exp(d, hn::Add(a, a)))));
  return hn::CopySign(hn::IfThenElse(hn::Lt(a, hn::Set(d, 0.65f)), small, large), x);
}

// erfc(a) for a >= 0: e^(-a^2) times a polynomial in 1 / (1 + 0.42 a) (the form of Abramowitz and Stegun 7.1.26).
// Relative error <= 3e-7 (1 + a^2). `a2` is a^2, as exactly as the caller knows it.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V ErfcPositive(D d, V a, V a2) {
  const V one = hn::Set(d, 1.0f);
  const V t = hn::Div(one, hn::MulAdd(a, hn::Set(d, 0.42f), one));
  const V p = Poly(d, t, 0.2368244317f, 0.2395828778f, 0.1947441355f, 0.2686842373f, -0.1304176053f, 0.4405559825f,
                   -0.3201893600f, 0.0702151314f);
  return hn::Mul(hn::Mul(t, p), Exp(d, hn::Neg(a2)));
}

// Relative error <= 2.5e-7.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Erf(D d, V x) {
  const V a = hn::Abs(x), x2 = hn::Mul(x, x);
  const V small = hn::Mul(x, Poly(d, x2, 1.1283790863f, -0.3761193024f, 0.1127373919f, -0.0263603337f, 0.0041588910f));
  const V large = hn::Sub(hn::Set(d, 1.0f), ErfcPositive(d, a, x2));
  return hn::IfThenElse(hn::Lt(a, hn::Set(d, 0.75f)), small, hn::CopySign(large, x));
}

// x / 2 (1 + erf(x / sqrt 2)) without the cancellation of the negative tail: relative error <= 1e-6 for |x| < 5, 5e-6
// below. GeluErf(-inf) is NaN, as in the formula.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V GeluErf(D d, V x) {
  const V half = hn::Set(d, 0.5f), x2 = hn::Mul(hn::Mul(x, half), x);
  const V tail = hn::Mul(half, ErfcPositive(d, hn::Mul(hn::Abs(x), hn::Set(d, 0.70710678f)), x2));
  return hn::Mul(x, hn::IfThenElse(hn::Gt(x, hn::Zero(d)), hn::Sub(hn::Set(d, 1.0f), tail), tail));
}

// x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), computed as x sigmoid(2 ...). Relative error
// <= 2e-6 for |x| < 5, 1.3e-5 below.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V GeluTanh(D d, V x) {
  const V x2 = hn::Mul(x, x);
  const V u = hn::Mul(x, hn::MulAdd(x2, hn::Set(d, -0.0713548163f), hn::Set(d, -1.5957691216f)));
  return hn::Div(x, hn::Add(hn::Set(d, 1.0f), Exp(d, u)));
}

}  // namespace lz::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
