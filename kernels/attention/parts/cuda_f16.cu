// Attention of few rows on CUDA over keys and values in float16.
#include "kernels/attention/decode_kernel_cuda.h"

namespace lz::attention {
int32_t DecodeF16(const CudaProblem& p, void* stream) { return LaunchDecode<__half>(p, stream); }
}  // namespace lz::attention
