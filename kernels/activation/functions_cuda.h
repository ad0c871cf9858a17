// The activation functions on CUDA, FP32, without branches and divisions. The tails of gelu keep their relative
// precision; errors of a few units of FP32.
#pragma once

#include "kernels/cuda.h"
#include "ops/common/activation.h"

namespace lz {

#ifdef __CUDACC__
// 1 / x of an x from 1 on: what an exact division adds, subnormal operands among it, is not needed.
__device__ inline float Reciprocal(float x) {
#if defined(LZ_CUDA_EMULATED)
  return 1.0f / x;
#else
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

// Both sides by exp of what is not above 0.
__device__ inline float Sigmoid(float x) {
  const float e = expf(-fabsf(x)), r = Reciprocal(1.0f + e);
  return x < 0 ? e * r : r;
}

// The normal distribution's function of -|x|: exp(-x^2 / 2) t P(t), t = 1 / (1 + 0.2616 |x|), where P was fitted to
// erfc(z) exp(z^2) / (2 t) on [0, 9.6] by least squares of relative errors (8e-7 at most).
__device__ inline float NormalTail(float x) {
  const float a = fminf(fabsf(x), 20.0f), square = a * a;
  const float t = Reciprocal(__fmaf_rn(a, 0.26162950903902260f, 1.0f));
  float p = -0.07118021454f;
  p = __fmaf_rn(p, t, 0.2174826677f);
  p = __fmaf_rn(p, t, -0.09270942809f);
  p = __fmaf_rn(p, t, 0.1583249452f);
  p = __fmaf_rn(p, t, 0.07647953267f);
  p = __fmaf_rn(p, t, 0.1074104432f);
  p = __fmaf_rn(p, t, 0.1041924347f);
  const float e = expf(-0.5f * square);
  return p * t * __fmaf_rn(e, -0.5f * __fmaf_rn(a, a, -square), e);  // with what the square lost
}

template <int32_t kFunction>
struct ActivationOf {
  float alpha = 1.0f;  // for silu

  __device__ float operator()(float x) const {
    using namespace ops::activation;
    if constexpr (kFunction == kSilu) return x * Sigmoid(alpha * x);
    if constexpr (kFunction == kGelu) return x * (x < 0 ? NormalTail(x) : 1.0f - NormalTail(x));
    if constexpr (kFunction == kGeluTanh) return x * Sigmoid(1.5957691216057308f * (x + 0.044715f * x * x * x));
    if constexpr (kFunction == kRelu) return x < 0 ? 0.0f : x;
    if constexpr (kFunction == kRelu2) return x < 0 ? 0.0f : x * x;
    if constexpr (kFunction == kQuickGelu) return x * Sigmoid(1.702f * x);
    if constexpr (kFunction == kSigmoid) return Sigmoid(x);
    if constexpr (kFunction == kTanh) return tanhf(x);
    return x;
  }
};

// body(ActivationOf<function>{alpha})
template <class Body>
int32_t WithActivation(int32_t function, float alpha, Body&& body) {
  using namespace ops::activation;
  switch (function) {
    case kSilu: return body(ActivationOf<kSilu>{alpha});
    case kGelu: return body(ActivationOf<kGelu>{});
    case kGeluTanh: return body(ActivationOf<kGeluTanh>{});
    case kRelu: return body(ActivationOf<kRelu>{});
    case kRelu2: return body(ActivationOf<kRelu2>{});
    case kQuickGelu: return body(ActivationOf<kQuickGelu>{});
    case kSigmoid: return body(ActivationOf<kSigmoid>{});
    case kTanh: return body(ActivationOf<kTanh>{});
    default: return body(ActivationOf<kIdentity>{});
  }
}

// Any of them, selected for each element: for calls that do not deserve code of their own.
struct Activation {
  int32_t function;
  float alpha = 1.0f;

  __device__ float operator()(float x) const {
    using namespace ops::activation;
    switch (function) {
      case kSilu: return ActivationOf<kSilu>{alpha}(x);
      case kGelu: return ActivationOf<kGelu>{}(x);
      case kGeluTanh: return ActivationOf<kGeluTanh>{}(x);
      case kRelu: return ActivationOf<kRelu>{}(x);
      case kRelu2: return ActivationOf<kRelu2>{}(x);
      case kQuickGelu: return ActivationOf<kQuickGelu>{}(x);
      case kSigmoid: return ActivationOf<kSigmoid>{}(x);
      case kTanh: return ActivationOf<kTanh>{}(x);
      default: return x;
    }
  }
};
#endif  // __CUDACC__

}  // namespace lz
