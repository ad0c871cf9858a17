// Attention of warpgroups on CUDA in bfloat16.
#include "kernels/attention/group_kernel_cuda.h"

namespace lz::attention {
int32_t GroupsBF16(const CudaProblem& p, void* stream) { return LaunchGroups<__nv_bfloat16>(p, stream); }
}  // namespace lz::attention
