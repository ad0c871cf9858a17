// Attention of tiles of rows on CUDA through a map of blocks, in bfloat16.
#include "kernels/attention/tile_kernel_cuda.h"

namespace lz::attention {
int32_t MappedBF16(const CudaProblem& p, void* stream) { return LaunchTilesOfHeads<__nv_bfloat16, true>(p, stream); }
}  // namespace lz::attention
