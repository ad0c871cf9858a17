// Attention of tiles of rows on CUDA in FP32.
#include "kernels/attention/float_tile_kernel_cuda.h"

namespace lz::attention {
int32_t FloatTiles(const CudaProblem& p, void* stream) { return LaunchFloatTiles<false>(p, stream); }
}  // namespace lz::attention
