// Attention of tiles of rows on CUDA in float16.
#include "kernels/attention/slim_kernel_cuda.h"
#include "kernels/attention/tile_kernel_cuda.h"

namespace lz::attention {
int32_t TilesF16(const CudaProblem& p, void* stream) {
  return IsSlim(p) ? LaunchSlim<__half>(p, stream) : LaunchTiles<__half>(p, stream);
}
}  // namespace lz::attention
