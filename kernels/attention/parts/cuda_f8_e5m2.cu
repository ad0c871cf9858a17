// Attention of few rows on CUDA over keys and values in FP8 e5m2.
#include "kernels/attention/decode_kernel_cuda.h"

namespace lz::attention {
int32_t DecodeF8E5M2(const CudaProblem& p, void* stream) { return LaunchDecode<E5M2>(p, stream); }
}  // namespace lz::attention
