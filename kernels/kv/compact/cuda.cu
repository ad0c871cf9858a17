// kv.compact on CUDA: keys and values by one launch, some of a block's elements a thread.
//   key_cache [blocks, block_size, h_kv, d_k], value_cache [..., d_v]  any dtype, last dim dense     moves [m, 2]
//   i32|i64
// Writes the caches. Workspace: none. Deterministic. Safe in graph captures. A pair of a block beyond the cache is left
// out, and targets that other pairs name are not looked for: the host cannot see them without waiting for the device.
#include "kernels/kv/rows_cuda.h"
#include "ops/kv/compact.h"

namespace lz {
namespace {
using namespace lz::ops::kv_compact;

struct Problem {
  kv::PagedSide side[2];  // of the caches alone
  const void* moves;
  int64_t move_stride, part_stride, blocks, n;
  bool wide_moves;
};

template <class Unit>
__global__ void __launch_bounds__(kv::kPagedThreads) Compact(const Problem p) {
  const kv::PagedSide& s = p.side[blockIdx.z];
  Unit* cache = static_cast<Unit*>(const_cast<void*>(s.cache));
  const int64_t items = s.block_size * s.heads * s.width;
  for (int64_t pair = blockIdx.x; pair < p.n; pair += gridDim.x) {
    const int64_t from = LoadIndex(p.moves, pair * p.move_stride, p.wide_moves);
    const int64_t to = LoadIndex(p.moves, pair * p.move_stride + p.part_stride, p.wide_moves);
    if (from < 0 || from >= p.blocks || to < 0 || to >= p.blocks) continue;
    for (int64_t i = int64_t(blockIdx.y) * blockDim.x + threadIdx.x; i < items; i += int64_t(gridDim.y) * blockDim.x) {
      const int64_t row = i / s.width, at = row / s.heads * s.slot + row % s.heads * s.head + i % s.width;
      cache[to * s.block + at] = cache[from * s.block + at];
    }
  }
}

int32_t Launch(const lz_kernel_args* args) {
  const lz_tensor& moves = args->tensors[kMoves];
  Problem p = {.moves = Data<void>(moves),
               .move_stride = moves.strides[0],
               .part_stride = moves.strides[1],
               .blocks = args->tensors[kKeyCache].shape[0],
               .n = moves.shape[0],
               .wide_moves = DTypeOf(moves) == DType::kI64};
  Problem narrow = p;
  bool wide = true;
  int64_t most = 0;
  for (int i = 0; i < 2; ++i) {
    const lz_tensor& cache = args->tensors[i == 0 ? kKeyCache : kValueCache];
    // Its own rows stand in for the others, which do not exist.
    narrow.side[i] = p.side[i] = kv::SideOf(cache, cache, nullptr);
    wide = wide && kv::ToWide(&p.side[i]);
  }
  if (!wide) p = narrow;
  for (const kv::PagedSide& s : p.side) {
    const int64_t items = s.block_size * s.heads * s.width;
    most = items > most ? items : most;
  }
  if (p.n == 0 || most == 0) return 0;
  const int64_t chunks = (most + kv::kPagedThreads - 1) / kv::kPagedThreads;
  const dim3 grid(unsigned(p.n < int64_t{1} << 30 ? p.n : int64_t{1} << 30), unsigned(chunks < 64 ? chunks : 64), 2);
  const cudaStream_t stream = static_cast<cudaStream_t>(args->stream);
  if (wide) {
    Compact<uint4><<<grid, kv::kPagedThreads, 0, stream>>>(p);
    return Launched();
  }
  switch (ByteSize(p.side[0].cache_type)) {
    case 1: Compact<uint8_t><<<grid, kv::kPagedThreads, 0, stream>>>(p); break;
    case 2: Compact<uint16_t><<<grid, kv::kPagedThreads, 0, stream>>>(p); break;
    case 4: Compact<uint32_t><<<grid, kv::kPagedThreads, 0, stream>>>(p); break;
    default: Compact<uint64_t><<<grid, kv::kPagedThreads, 0, stream>>>(p); break;
  }
  return Launched();
}

constexpr auto kConstraints = std::to_array<Constraint>({kOnCompiledSm, kOnDriver});
constexpr auto kFamily = std::to_array<KernelSpec>({
    {.id = "cuda.kv.compact",
     .operation = "kv.compact",
     .platform = Platform::kCuda,
     .dtypes = ops::kv::kCacheDTypes,
     .constraints = kConstraints,
     .strides = Strides::kLastDimDense,
     .priority = 80,
     .deterministic = true,
     .cuda_graph_safe = true,
     .launch = &Launch},
});
}  // namespace
}  // namespace lz
LZ_KERNEL_FAMILY = lz::kFamily;
