// Attention of warpgroups on CUDA in float16.
#include "kernels/attention/group_kernel_cuda.h"

namespace lz::attention {
int32_t GroupsF16(const CudaProblem& p, void* stream) { return LaunchGroups<__half>(p, stream); }
}  // namespace lz::attention
