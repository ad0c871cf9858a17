// The weights exp((x - max) / temperature) of logits on CUDA, in FP32, and their masses.
#pragma once

#include "kernels/sampling/common/block_cuda.h"

namespace lz::sampler {

#ifdef __CUDACC__
// Temperatures beyond 1e30 or below 1e-30 have a factor that FP32 does not hold: it becomes two. Beyond 1e30
// differences that FP32 does not hold still count: those of quarters are taken.
class Weights {
 public:
  float highest;

  __device__ Weights(float highest, double temperature) : highest(highest) {
    const double factor = 1 / temperature;
    if (temperature > 1e30) {
      scale_ = 0.25f;
      first_ = 0x1p-58f;
      second_ = fmaxf(float(factor * 0x1p60), 0x1p-126f);
    } else if (temperature < 1e-30) {
      first_ = 0x1p60f;
      second_ = float(factor * 0x1p-60);
    } else {
      first_ = float(factor);
    }
  }
  // Of a logit that is not above `highest`: 1 there, 0 at -inf.
  __device__ float operator()(float v) const {
    if (v == highest) return 1.0f;
    return expf((v * scale_ - highest * scale_) * first_ * second_);
  }

 private:
  float scale_ = 1, first_, second_ = 1;
};
__device__ inline Mass MassOfWeight(float w) { return __float2ull_rn(w * 0x1p40f); }
#endif  // __CUDACC__

}  // namespace lz::sampler
