// The activation functions and the gated form of ops/common/activation.h on vectors, CPU SIMD, FP32. Include only from
// files that Highway compiles per target, after kernels/simd.h.
#if defined(LZ_KERNELS_ACTIVATION_FUNCTIONS_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LZ_KERNELS_ACTIVATION_FUNCTIONS_H_
#undef LZ_KERNELS_ACTIVATION_FUNCTIONS_H_
#else
#define LZ_KERNELS_ACTIVATION_FUNCTIONS_H_
#endif

#include <cstdint>

#include "hwy/highway.h"
#include "kernels/simd.h"
#include "kernels/simd_math.h"
#include "kernels/simd_math_bf16.h"
#include "ops/common/activation.h"

HWY_BEFORE_NAMESPACE();
namespace lz::HWY_NAMESPACE {

// The branch is the same for all vectors of a call: predicted, and much smaller than a separate loop for each function.
// Out: the type that the result is rounded to.
template <class Out = float, class D, class V = hn::Vec<D>>
HWY_INLINE V Activate(D d, V x, int64_t function, float alpha) {
  using namespace ops::activation;
  const auto negative = hn::Lt(x, hn::Zero(d));
  switch (function) {
    case kSilu: return ScaledSiluTo<Out>(d, x, alpha);
    case kGelu: return GeluErfTo<Out>(d, x);
    case kGeluTanh: return GeluTanhTo<Out>(d, x);
    case kRelu: return hn::IfThenZeroElse(negative, x);
    case kRelu2: return hn::IfThenZeroElse(negative, hn::Mul(x, x));
    case kQuickGelu: return ScaledSiluTo<Out>(d, x, 1.702f);
    case kSigmoid: return SigmoidTo<Out>(d, x);
    case kTanh: return Tanh(d, x);
    default: return x;
  }
}

// act(min(gate, limit)) * (clamp(up) + up_offset); comparisons with NaN are false, so that NaN stays.
struct GateFunction {
  explicit GateFunction(const lz_scalar* activation) : gate(activation) {}

  template <class Out = float, class D, class V = hn::Vec<D>>
  HWY_INLINE V Activated(D d, V g) const {
    const V limit = hn::Set(d, float(gate.limit));
    return Activate<Out>(d, hn::IfThenElse(hn::Gt(g, limit), limit, g), gate.function, float(gate.alpha));
  }
  template <class Out = float, class D, class V = hn::Vec<D>>
  HWY_INLINE V Gated(D d, V g, V u) const {
    const V limit = hn::Set(d, float(gate.limit)), least = hn::Neg(limit);
    u = hn::IfThenElse(hn::Gt(u, limit), limit, u);
    u = hn::IfThenElse(hn::Lt(u, least), least, u);
    return hn::Mul(Activated<Out>(d, g), hn::Add(u, hn::Set(d, float(gate.up_offset))));
  }
  template <class D, class V = hn::Vec<D>>
  HWY_INLINE V operator()(D d, V g, V u) const {
    return Gated(d, g, u);
  }

  ops::activation::Gate gate;
};

}  // namespace lz::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
