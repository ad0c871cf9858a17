// Attention of few rows on CUDA over keys and values in int8.
#include "kernels/attention/decode_kernel_cuda.h"

namespace lz::attention {
int32_t DecodeI8(const CudaProblem& p, void* stream) { return LaunchDecode<int8_t>(p, stream); }
}  // namespace lz::attention
