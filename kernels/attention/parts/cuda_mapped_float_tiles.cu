// Attention of tiles of rows on CUDA through a map of blocks, in FP32.
#include "kernels/attention/float_tile_kernel_cuda.h"

namespace lz::attention {
int32_t MappedFloatTiles(const CudaProblem& p, void* stream) { return LaunchFloatTiles<true>(p, stream); }
}  // namespace lz::attention
