// Attention of few rows on CUDA over keys and values in bfloat16.
#include "kernels/attention/decode_kernel_cuda.h"

namespace lz::attention {
int32_t DecodeBF16(const CudaProblem& p, void* stream) { return LaunchDecode<__nv_bfloat16>(p, stream); }
}  // namespace lz::attention
