// Attention of few rows on CUDA over keys and values in FP8 e4m3.
#include "kernels/attention/decode_kernel_cuda.h"

namespace lz::attention {
int32_t DecodeF8E4M3(const CudaProblem& p, void* stream) { return LaunchDecode<E4M3>(p, stream); }
}  // namespace lz::attention
