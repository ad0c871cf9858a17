// Attention of tiles of rows on CUDA through a map of blocks, in float16.
#include "kernels/attention/tile_kernel_cuda.h"

namespace lz::attention {
int32_t MappedF16(const CudaProblem& p, void* stream) { return LaunchTilesOfHeads<__half, true>(p, stream); }
}  // namespace lz::attention
