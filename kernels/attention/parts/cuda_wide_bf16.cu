// Attention of heads with more than 256 columns on CUDA in bfloat16.
#include "kernels/attention/wide_kernel_cuda.h"

namespace lz::attention {
int32_t WideBF16(const CudaProblem& p, void* stream) { return LaunchWide<__nv_bfloat16>(p, stream); }
}  // namespace lz::attention
