// The weights exp((x - max) / temperature) of logits on CUDA, in FP32, and their masses.
#pragma once

#include "kernels/sampling/common/block_cuda.h"

namespace lz::sampler {

#ifdef __CUDACC__
struct Weights {
  float highest, factor;
  double temperature;
  bool wide;  // FP32 does not hold the factor, or differences that still count

  __device__ Weights(float highest, double temperature)
      : highest(highest),
        factor(float(1 / temperature)),
        temperature(temperature),
        wide(temperature < 1e-30 || temperature > 1e30) {}
  // Of a logit that is not above `highest`: 1 there, 0 at -inf.
  __device__ float operator()(float v) const {
    if (v == highest) return 1.0f;
    return expf(wide ? float((double(v) - double(highest)) / temperature) : (v - highest) * factor);
  }
};
__device__ inline Mass MassOfWeight(float w) { return __float2ull_rn(w * 0x1p40f); }
#endif  // __CUDACC__

}  // namespace lz::sampler
