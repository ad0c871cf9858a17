// The activation functions on CUDA, FP32, selected when a kernel runs. The tails of gelu keep their relative precision.
#pragma once

#include "kernels/cuda.h"
#include "ops/common/activation.h"

namespace lz {

#ifdef __CUDACC__
struct Activation {
  int32_t function;
  float alpha = 1.0f;  // for silu

  __device__ float operator()(float x) const {
    using namespace ops::activation;
    switch (function) {
      case kSilu: return x / (1.0f + expf(-alpha * x));
      case kGelu: return 0.5f * x * erfcf(x * -0.70710678118654752f);
      case kGeluTanh: return x / (1.0f + expf(-1.5957691216057308f * (x + 0.044715f * x * x * x)));
      case kRelu: return x < 0 ? 0.0f : x;
      case kRelu2: return x < 0 ? 0.0f : x * x;
      case kQuickGelu: return x / (1.0f + expf(-1.702f * x));
      case kSigmoid: return 1.0f / (1.0f + expf(-x));
      case kTanh: return tanhf(x);
      default: return x;
    }
  }
};
#endif  // __CUDACC__

}  // namespace lz
