// Attention of heads with more than 256 columns on CUDA in float16.
#include "kernels/attention/wide_kernel_cuda.h"

namespace lz::attention {
int32_t WideF16(const CudaProblem& p, void* stream) { return LaunchWide<__half>(p, stream); }
}  // namespace lz::attention
