// Attention of tiles of rows on CUDA in bfloat16.
#include "kernels/attention/slim_kernel_cuda.h"
#include "kernels/attention/tile_kernel_cuda.h"

namespace lz::attention {
int32_t TilesBF16(const CudaProblem& p, void* stream) {
  return IsSlim(p) ? LaunchSlim<__nv_bfloat16>(p, stream) : LaunchTiles<__nv_bfloat16>(p, stream);
}
}  // namespace lz::attention
