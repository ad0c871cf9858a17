// Attention of few rows on CUDA over keys and values in float32.
#include "kernels/attention/decode_kernel_cuda.h"

namespace lz::attention {
int32_t DecodeF32(const CudaProblem& p, void* stream) { return LaunchDecode<float>(p, stream); }
}  // namespace lz::attention
